package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// again is how soon a volume is tried again that could not be bound to the daemon's new mount.
const again = time.Second

// Follow binds volumes to the daemon's mount whenever another one takes its place, until ctx ends. The kernel tells of each change
// of the table of mounts.
func (v *Volumes) Follow(ctx context.Context) error {
	// Not by os.Open: the runtime would poll it, too, and each change is told to one poll only.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(table)
	ended, end, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ended.Close()
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end.Close()
	})
	defer func() {
		if stop() {
			end.Close()
		} else {
			<-stopped
		}
	}()
	for ctx.Err() == nil {
		wait := -1
		if behind := v.follow(ctx); behind > 0 {
			wait = int(again.Milliseconds())
		}
		polled := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(polled, wait); err != nil && err != unix.EINTR {
			return fmt.Errorf("await changes of mounts: %w", err)
		}
	}
	return nil
}

// follow binds the volumes that are not on the daemon's mount to it, and returns how many are to be tried again.
func (v *Volumes) follow(ctx context.Context) (behind int) {
	mounts, err := host.Local().Mounts()
	if err != nil {
		v.warn("mounts cannot be read", err)
		return 1
	}
	current, ok := host.At(mounts, v.c.Mount)
	if !ok || current.Type != host.HF3FSType {
		return 0 // until there is one
	}
	var late []Record
	for _, r := range v.all() {
		if top, mounted := host.At(mounts, r.Target); mounted && top.Device != current.Device {
			late = append(late, r)
		}
	}
	if len(late) == 0 {
		return 0
	}
	if _, err := v.daemon(ctx, mounts); err != nil {
		v.warn("volumes wait for the daemon's new mount", err)
		return len(late)
	}
	for _, r := range late {
		err := v.patience.alone(ctx, r.Target, func() error { return v.recover(ctx, r.Target) })
		if err != nil && ctx.Err() == nil {
			v.warn("a volume cannot be bound to the daemon's new mount yet", err)
			behind++
		}
	}
	return behind
}

// recover binds a volume over its dead mount.
func (v *Volumes) recover(ctx context.Context, target string) error {
	mounts, err := host.Local().Mounts()
	if err != nil {
		return err
	}
	r, known := v.record(target)
	top, mounted := host.At(mounts, target)
	if !known || !mounted {
		return nil // it was unpublished meanwhile
	}
	current, err := v.daemon(ctx, mounts)
	if err != nil || top.Device == current.Device {
		return err
	}
	made, err := v.prepare(r)
	if err != nil {
		return err
	}
	if made { // the data directory is a new one, or was emptied
		if err := v.limit(ctx, r); err != nil {
			v.warn("a volume's directory had to be made again and has no quota", err)
		}
	}
	if err := v.bind(r, mounts); err != nil {
		return err
	}
	v.recovered.Add(1)
	v.c.Log.Info("volume bound to the daemon's new mount", "volume", r.Volume, "target", target, "pod", r.Namespace+"/"+r.Pod)
	return nil
}

// warn logs what may happen again and again.
func (v *Volumes) warn(what string, err error) {
	var known *Failure
	if errors.As(err, &known) && known.Kind == Busy {
		return // the call that it waits for says what is wrong
	}
	if suppressed, now := v.pace.Log(what); now {
		v.c.Log.Warn(what, "err", err, "suppressed", suppressed)
	}
}
