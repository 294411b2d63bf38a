package volumes

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// fuseDevice is what a daemon mounts with.
const fuseDevice = "/dev/fuse"

// daemon returns the mount that volumes are parts of, if it answers.
func (v *Volumes) daemon(ctx context.Context, mounts []host.Mount) (host.Mount, error) {
	m, ok := host.At(mounts, v.c.Mount)
	switch {
	case !ok:
		return m, v.notThere(nil)
	case m.Type != host.HF3FSType:
		return m, failure(Refused, "at %s is %s of type %s, not a mount of kv3fs: give kv3fs csi --mount what the daemon has as --mount", v.c.Mount, m.Source, m.Type)
	}
	if _, err := v.ask(ctx, m.Device, v.c.Mount); err != nil {
		return m, err
	}
	return m, nil
}

// ask returns the space of the file system at a path, if its daemon answers. key is what must not be asked for twice at a time.
func (v *Volumes) ask(ctx context.Context, key, path string) (unix.Statfs_t, error) {
	st, err := v.space.ask(ctx, v.patience, key, "the mount of kv3fs", func() (st unix.Statfs_t, err error) {
		for {
			if err = unix.Statfs(path, &st); err != unix.EINTR {
				return st, err
			}
		}
	})
	var known *Failure
	if err == nil || errors.As(err, &known) || ctx.Err() != nil {
		return st, err
	}
	return st, v.notThere(err)
}

// notThere is the failure of a mount that is missing, or that its daemon has left behind.
func (v *Volumes) notThere(err error) error {
	switch _, noDevice := os.Stat(fuseDevice); {
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED):
		return failure(NotReady, "the mount at %s is dead, because its daemon has ended: volumes come back by themselves once kv3fs serve runs there again; see why it ended: %w", v.c.Mount, err)
	case err != nil:
		return failure(NotReady, "the mount at %s does not answer: look at the log of kv3fs serve: %w", v.c.Mount, err)
	case errors.Is(noDevice, os.ErrNotExist):
		return failure(NotReady, "there is no mount of kv3fs at %s, and no %s on this node: load it by modprobe fuse, then start kv3fs serve", v.c.Mount, fuseDevice)
	}
	return failure(NotReady, "there is no mount of kv3fs at %s: start kv3fs serve there; if it runs, this container has to have the directory that holds the mount, with mountPropagation: HostToContainer", v.c.Mount)
}

// Ready reports whether volumes can be published now, and why not.
func (v *Volumes) Ready(ctx context.Context) error {
	mounts, err := host.Local().Mounts()
	if err == nil {
		_, err = v.daemon(ctx, mounts)
	}
	return err
}
