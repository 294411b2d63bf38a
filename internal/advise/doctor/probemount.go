package doctor

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

// maxIdentityBytes bounds the attribute by which a daemon identifies itself.
const maxIdentityBytes = 64 << 10

// probeMount examines what is mounted at path. For a dead daemon's mount, Canonical stays
// empty and OpenErr has the errno.
func probeMount(path string) (f mountFacts) {
	f.Canonical, _ = filepath.EvalSymlinks(path)
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		f.OpenErr = probeErrorOf(err)
		return f
	}
	dir, err := os.Open(path)
	if err != nil {
		f.OpenErr = probeErrorOf(err)
		return f
	}
	defer dir.Close()
	names, err := dir.Readdirnames(1)
	f.Occupied = len(names) > 0 || err != nil && err != io.EOF
	f.Iovs = readable(filepath.Join(path, host.VirtDir, "iovs"))
	if f.Iovs.is(dead[:]...) { // 3fs-virt is a mount of its own
		f.OpenErr = f.Iovs
	}
	// In a container, path may be only a part of the mount, or not on it at all.
	if virt, err := os.Open(filepath.Join(path, host.VirtDir)); err == nil {
		f.Magic, _ = usrbio.IsHF3FS(context.Background(), virt)
		virt.Close()
	}
	value := make([]byte, maxIdentityBytes)
	if n, err := unix.Getxattr(path, wire.DaemonXattr, value); err == nil {
		var d wire.Daemon
		if json.Unmarshal(value[:n], &d) == nil {
			f.Daemon = &d
		}
	}
	return f
}
