package daemon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/host"
)

// handedOver is what a daemon that hands over on purpose says to the next one, in a file of the state of restarts. That one removes it
// before it serves: who comes after it knows nothing of this.
type handedOver struct {
	Token string        `json:"token"` // a random one
	Since time.Duration `json:"since"` // the boot: from when on clients have waited
	// HeldBack says that all requests of the mount that were begun were answered.
	HeldBack bool `json:"held_back"`
}

const (
	handoverFile    = "handover"
	handoverVersion = 1
)

func (h handedOver) leave(state *restart.Dir) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return state.Write(handoverFile, handoverVersion, text)
}

// takeHandover returns what the daemon before has said; a zero value: nothing.
func takeHandover(state *restart.Dir, log *slog.Logger) (h handedOver) {
	if state == nil {
		return h
	}
	version, text, err := state.Read(handoverFile)
	if errors.Is(err, fs.ErrNotExist) {
		return h
	}
	if err == nil && version == handoverVersion {
		err = json.Unmarshal(text, &h)
	}
	if err = errors.Join(err, state.Remove(handoverFile)); err != nil {
		log.Warn("how the daemon before has handed over cannot be read: it counts as one that has crashed", "err", err)
		return handedOver{}
	}
	return h
}

// quietTime bounds each step of the handing over of a daemon that could as well go on.
const quietTime = 2 * time.Second

// stillness has a daemon that serves begin nothing more, so that its process can be replaced.
type stillness struct {
	mnt      *fuseserver.Mount
	rings    *ringserver.Server
	pages    *pageService // may be nil
	watchdog *watchdog
	log      *slog.Logger
}

// begin returns when nothing is under way: requests of rings and of the mount wait. It returns what a successor is told, and what has all
// of it go on; after an error it does by itself.
func (q *stillness) begin() (h handedOver, goOn func(), err error) {
	var undo []func()
	goOn = sync.OnceFunc(func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	})
	defer func() {
		if err != nil {
			goOn()
		}
	}()
	bounded := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), quietTime)
		defer cancel()
		return do(ctx)
	}
	q.reloading()
	undo = append(undo, func() { _, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyReady) })
	if err := bounded(q.watchdog.pause); err != nil { // its look at the mount would wait for this process
		return h, goOn, err
	}
	undo = append(undo, q.watchdog.resume)
	h = handedOver{Token: rand.Text(), Since: host.SinceBoot()}
	err = bounded(func(ctx context.Context) error {
		resume, err := q.pages.holdBack(ctx)
		undo = append(undo, resume)
		return err
	})
	if err != nil { // clients that are slow to send, or to read, hold up nobody
		q.log.Info("handing over with requests that will be cut off", "err", err)
	}
	if err := bounded(q.rings.Pause); err != nil {
		return h, goOn, err
	}
	undo = append(undo, q.rings.Resume)
	err = bounded(q.mnt.Gate)
	undo = append(undo, q.mnt.Open)
	var left *fuseserver.Unanswered
	switch {
	case err == nil:
		h.HeldBack = true
	case errors.As(err, &left) && left.Busy == 0: // the kernel itself holds some back
		q.log.Info("handing over with requests that the kernel has not sent yet", "waiting", left.Waiting, "held", left.Held)
	default:
		return h, goOn, err
	}
	return h, goOn, bounded(awaitNoneStuck)
}

// reloading tells systemd that the daemon is not ready for a moment.
func (q *stillness) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return // it is for systemd's records
	}
	const us = int64(time.Microsecond)
	_, _ = sdnotify.SdNotify(false, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", sdnotify.SdNotifyReloading, now.Nano()/us)) // systemd may not be there
}
