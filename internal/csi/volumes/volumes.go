package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/logpace"
)

// Config says where things are.
type Config struct {
	Mount   string // the daemon's mount point
	Kubelet string // kubelet's root directory; targets are below it
	State   string // where records are kept; made if it is not there
	Pages   string // holds a directory for each page namespace, with its socket; "": there is none
	Driver  string // the plugin's name, by which kubelet's own files tell its volumes
	// Patience bounds everything that touches a mount.
	Patience time.Duration
	// SetQuota limits what a directory, given below the mount, may take; nil: nobody can.
	SetQuota func(ctx context.Context, dir string, bytes int64) error
	Log      *slog.Logger
}

// Volumes are the volumes of this node. Its methods may be called concurrently.
type Volumes struct {
	c        Config
	ledger   ledger
	lock     *os.File
	patience *patience
	space    shared[unix.Statfs_t]
	pace     logpace.Pace

	mu      sync.Mutex
	records map[string]Record // by target

	recovered atomic.Uint64
}

// Open reads what was published before and compares it with what is mounted. The caller calls Close.
func Open(c Config) (*Volumes, error) {
	for _, at := range []*string{&c.Mount, &c.Kubelet, &c.State, &c.Pages} {
		if *at == "" {
			continue
		}
		var err error
		if *at, err = realPath(*at); err != nil {
			return nil, err
		}
		if _, err := os.Readlink(*at); err == nil { // asks no daemon, as a look at what is there would
			if *at, err = filepath.EvalSymlinks(*at); err != nil {
				return nil, err
			}
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(c.State), 0o750), os.MkdirAll(c.State, 0o700)); err != nil {
		return nil, fmt.Errorf("state of the plugin: %w", err)
	}
	lock, err := lockState(c.State)
	if err != nil {
		return nil, err
	}
	v := &Volumes{c: c, ledger: ledger{c.State}, lock: lock, patience: newPatience(c.Patience)}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	v.records, err = v.ledger.load(func(file string, why error) {
		c.Log.Warn("what was noted of a volume cannot be read and is set aside", "file", file, "why", why)
	})
	if err != nil {
		return nil, fmt.Errorf("state of the plugin: %w", err)
	}
	mounts, err := host.Local().Mounts()
	if err != nil {
		return nil, err
	}
	if err = v.reconcile(mounts); err != nil {
		return nil, fmt.Errorf("state of the plugin: %w", err)
	}
	v.warnUnshared(mounts)
	return v, nil
}

// Close waits for calls that have not ended, for a while. Nothing is unmounted.
func (v *Volumes) Close() {
	v.patience.drain()
	v.lock.Close()
}

// lockState keeps two plugins from changing the same records. The lock ends with the process.
func lockState(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state of the plugin: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another plugin serves with the records in %s: stop it, or give this one another --name, or --state, --endpoint and --registration", dir)
		}
		return nil, fmt.Errorf("state of the plugin: lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// realPath resolves the symbolic links in a path whose last part need not be there, and may be a mount that does not answer.
func realPath(p string) (string, error) {
	full, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	for dir, rest := filepath.Dir(full), filepath.Base(full); ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if is, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(is, rest), nil
		} else if dir == "/" || !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
}

// warnUnshared says so where no container could see what is mounted.
func (v *Volumes) warnUnshared(mounts []host.Mount) {
	if m, ok := host.Holding(mounts, v.c.Kubelet); ok && !m.Shared {
		v.c.Log.Warn("kubelet's directory is on a mount that is not shared: pods do not see their volumes", "directory", v.c.Kubelet, "mount", m.Point,
			"cure", "mount it into the plugin's container with mountPropagation: Bidirectional, or mount --make-rshared it on the host")
	}
}

// target checks a target path and resolves the links on the way to it.
func (v *Volumes) target(path string) (string, error) {
	if path == "" || !filepath.IsAbs(path) {
		return "", failure(Invalid, "target path %q: it must be absolute", path)
	}
	full, err := realPath(path)
	if err != nil {
		return "", failure(Invalid, "target path %q: %w", path, err)
	}
	if full == v.c.Kubelet || !host.Within(full, v.c.Kubelet) || host.Within(full, v.c.State) {
		return "", failure(Invalid, "target path %q is not below kubelet's directory %s: give kv3fs csi --kubelet the one that kubelet has as --root-dir", path, v.c.Kubelet)
	}
	return full, nil
}

func (v *Volumes) record(target string) (Record, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r, ok := v.records[target]
	return r, ok
}

// all returns the records in the order of their targets.
func (v *Volumes) all() []Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.SortedFunc(maps.Values(v.records), func(a, b Record) int { return cmp.Compare(a.Target, b.Target) })
}

func (v *Volumes) note(r Record) error {
	if err := v.ledger.save(r); err != nil {
		return failure(Refused, "cannot note the volume in %s: %w: free space there", v.c.State, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.records[r.Target] = r
	return nil
}

func (v *Volumes) forget(target string) error {
	if err := v.ledger.remove(target); err != nil {
		return failure(Refused, "cannot end the record of the volume in %s: %w", v.c.State, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.records, target)
	return nil
}

// Publish binds a volume at its target, unless it is there already.
func (v *Volumes) Publish(ctx context.Context, r Record) error {
	target, err := v.target(r.Target)
	if err != nil {
		return err
	}
	r.Target = target
	return v.patience.alone(ctx, target, func() error { return v.publish(ctx, r) })
}

func (v *Volumes) publish(ctx context.Context, r Record) error {
	mounts, err := host.Local().Mounts()
	if err != nil {
		return err
	}
	have, known := v.record(r.Target)
	top, mounted := host.At(mounts, r.Target)
	switch {
	case known && !have.same(r):
		return failure(Taken, "%s holds volume %q (subDirectory %s, readOnly %t, quota %d bytes, page namespace %q) already: unpublish that first", r.Target, have.Volume, have.SubDirectory, have.ReadOnly, have.QuotaBytes, have.Pages)
	case !known && mounted:
		return failure(Taken, "a mount that is not this plugin's (%s of type %s) is at %s: unmount it", top.Source, top.Type, r.Target)
	}
	daemon, err := v.daemon(ctx, mounts)
	switch {
	case err != nil:
		return err
	case known && mounted && top.Device == daemon.Device:
		if have.Adopted { // kubelet says the rest of what was lost
			return v.note(r)
		}
		return nil
	}
	if r.Pages != "" {
		if err := v.hasPages(r.Pages); err != nil {
			return err
		}
	}
	if _, err := v.prepare(r); err != nil {
		return err
	}
	if err := v.limit(ctx, r); err != nil {
		return err
	}
	if err := os.Mkdir(r.Target, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return failure(Invalid, "target path: %w: kubelet makes the directory that holds it", err)
	}
	if err := v.note(r); err != nil {
		return err
	}
	if err := v.bind(r, mounts); err != nil {
		if !known {
			_ = os.Remove(r.Target) // kubelet asks again, or has it removed
			return errors.Join(err, v.forget(r.Target))
		}
		return err
	}
	return nil
}

// hasPages reports a page namespace without a directory for its socket.
func (v *Volumes) hasPages(name string) error {
	switch dir := filepath.Join(v.c.Pages, name); {
	case v.c.Pages == "":
		return failure(Refused, "pagesNamespace %q: this node's plugin knows no page services: give kv3fs csi --pages", name)
	default:
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			return failure(Refused, "pagesNamespace %q: there is no directory %s: give the daemon --pages-listen %s=unix:%s/pages.sock", name, dir, name, dir)
		}
		return nil
	}
}

// limit sets the quota of a volume's sub-directory. It stays when the volume goes. Who may only read sets none.
func (v *Volumes) limit(ctx context.Context, r Record) error {
	if r.QuotaBytes == 0 || r.ReadOnly {
		return nil
	}
	if v.c.SetQuota == nil {
		return failure(Refused, "quota: this node's plugin cannot ask the daemon: give kv3fs csi --data, and mount the data directory into its container")
	}
	for _, other := range v.all() {
		if other.SubDirectory == r.SubDirectory && other.Target != r.Target && !other.ReadOnly && other.QuotaBytes != 0 && other.QuotaBytes != r.QuotaBytes {
			return failure(Refused, "quota: volume %q of pod %s/%s has sub-directory %s with a quota of %d bytes, not %d: give volumes of one sub-directory the same", other.Volume, other.Namespace, other.Pod, r.SubDirectory, other.QuotaBytes, r.QuotaBytes)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, v.c.Patience)
	defer cancel()
	if err := v.c.SetQuota(ctx, r.SubDirectory, r.QuotaBytes); err != nil {
		return failure(Refused, "quota of %s: %w", r.SubDirectory, err)
	}
	return nil
}

// bind mounts a volume at its target, over what is mounted there. Mounts that were put over the first one, for former daemons,
// go before: so there are never more than two, whatever the number of restarts. The first one cannot go, because what is mounted over it
// reaches the containers that have it.
func (v *Volumes) bind(r Record, mounts []host.Mount) error {
	t := tree{mount: v.c.Mount, sub: r.SubDirectory, readOnly: r.ReadOnly, stage: v.c.State}
	if r.Pages != "" {
		t.pages = filepath.Join(v.c.Pages, r.Pages)
	}
	fd, err := t.assemble()
	if err != nil {
		return failure(Refused, "volume %q: %w", r.Volume, err)
	}
	defer unix.Close(fd)
	for range len(host.Stack(mounts, r.Target)) - 1 {
		if err := unix.Unmount(r.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return failure(Refused, "unmount a dead mount at %s: %w", r.Target, err)
		}
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, r.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return failure(Refused, "mount volume %q at %s: %w", r.Volume, r.Target, err)
	}
	return nil
}

// Unpublish removes a volume from its target, and the target. It is no error if it is not there.
func (v *Volumes) Unpublish(ctx context.Context, volume, path string) error {
	target, err := v.target(path)
	if err != nil {
		return err
	}
	return v.patience.alone(ctx, target, func() error { return v.unpublish(volume, target) })
}

func (v *Volumes) unpublish(volume, target string) error {
	mounts, err := host.Local().Mounts()
	if err != nil {
		return err
	}
	have, known := v.record(target)
	if known && have.Volume != volume {
		return failure(Taken, "%s holds volume %q, not %q: nothing is unmounted", target, have.Volume, volume)
	}
	if top, mounted := host.At(mounts, target); mounted && !known && top.Type != host.HF3FSType {
		return failure(Taken, "a mount that is not this plugin's (%s of type %s) is at %s: unmount it", top.Source, top.Type, target)
	}
	for range host.Stack(mounts, target) {
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return failure(Refused, "unmount %s: %w", target, err)
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return failure(Refused, "remove the target: %w: remove by hand what is in it", err)
	}
	if !known {
		return nil
	}
	return v.forget(target)
}
