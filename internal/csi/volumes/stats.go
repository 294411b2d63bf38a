package volumes

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// State is how a volume is.
type State string

const (
	Live      State = "live"
	Dead      State = "dead"    // its daemon has ended
	Hung      State = "hung"    // its daemon does not answer
	Unmounted State = "missing" // nothing is mounted at its target
)

// States are all states.
func States() []State { return []State{Live, Dead, Hung, Unmounted} }

// Stats says how a volume is, and what its directory takes.
type Stats struct {
	State State
	Why   string // unless it is live: what is wrong, and what to do
	// Of the directory with its quota, or of the whole cache; 0 unless the volume is live.
	TotalBytes, UsedBytes, FreeBytes int64
}

// Stats returns the statistics of a published volume. Failures are those of the request: a volume that is sick is none.
func (v *Volumes) Stats(ctx context.Context, volume, path string) (Stats, error) {
	target, err := v.target(path)
	r, known := v.record(target)
	if err != nil || !known || r.Volume != volume {
		return Stats{}, failure(Missing, "volume %q is not published at %s", volume, path)
	}
	mounts, err := host.Local().Mounts()
	if err != nil {
		return Stats{}, err
	}
	top, mounted := host.At(mounts, target)
	if !mounted {
		return Stats{State: Unmounted, Why: "nothing is mounted at " + target + ": delete the pod, so that another one gets the volume"}, nil
	}
	// A mount that hangs is asked once, for all of its volumes; then this one's own directory is, for its quota.
	if _, err := v.ask(ctx, top.Device, target); err != nil {
		return sick(ctx, err)
	}
	st, err := v.ask(ctx, target, target)
	if err != nil {
		return sick(ctx, err)
	}
	block := int64(st.Frsize)
	return Stats{State: Live, TotalBytes: int64(st.Blocks) * block, UsedBytes: int64(st.Blocks-st.Bfree) * block, FreeBytes: int64(st.Bavail) * block}, nil
}

// sick is what Stats returns for a mount that cannot be asked.
func sick(ctx context.Context, err error) (Stats, error) {
	if ctx.Err() != nil {
		return Stats{}, err
	}
	return Stats{State: stateOf(err), Why: err.Error()}, nil
}

func stateOf(err error) State {
	switch {
	case err == nil:
		return Live
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED):
		return Dead
	}
	return Hung
}

// Count returns how many volumes are in each state. Each mount is asked once, all at the same time.
func (v *Volumes) Count(ctx context.Context) (map[State]int, error) {
	mounts, err := host.Local().Mounts()
	if err != nil {
		return nil, err
	}
	count := map[State]int{}
	asked := map[string]chan State{}
	number := map[string]int{}
	for _, r := range v.all() {
		top, mounted := host.At(mounts, r.Target)
		if !mounted {
			count[Unmounted]++
			continue
		}
		number[top.Device]++
		if asked[top.Device] != nil {
			continue
		}
		answer := make(chan State, 1)
		asked[top.Device] = answer
		go func() {
			_, err := v.ask(ctx, top.Device, r.Target)
			answer <- stateOf(err)
		}()
	}
	for device, answer := range asked {
		count[<-answer] += number[device]
	}
	return count, nil
}

// Recovered returns how many times a volume was bound to another daemon's mount.
func (v *Volumes) Recovered() uint64 { return v.recovered.Load() }
