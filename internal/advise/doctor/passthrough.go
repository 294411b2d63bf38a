package doctor

import (
	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Linux 6.9 introduced FUSE passthrough.
const passthroughMajor, passthroughMinor = 6, 9

// checkPassthrough says whether the kernel itself reads, writes and maps the files of the
// mount: as the daemon says, or if none does, as one that this user starts would.
func checkPassthrough(h host.Host, d *wire.Daemon, engine string) []Finding {
	const (
		id     = "fuse.passthrough"
		needed = ", to map files of the mount with MAP_SHARED (without it: ENODEV), and to read and write through the mount at the disk's speed; rings do not need it"
	)
	if d != nil && d.Passthrough != "" {
		if d.Passthrough == wire.PassthroughOn {
			return []Finding{ok(id, "on: the kernel itself reads, writes and maps the files of the mount")}
		}
		f := Finding{ID: id, Status: Note, Found: "off: " + d.Passthrough, Needed: "passthrough" + needed}
		if engine == engineconfig.LMCacheGDS {
			f.Status, f.Needed = Warning, "passthrough, or cuFile: LMCache without cuFile maps its files with MAP_SHARED, which is refused (ENODEV); or a directory that is not on the mount"
		}
		return []Finding{f}
	}
	k, err := h.Kernel()
	switch {
	case err != nil:
		return nil // checkKernel says so
	case !k.AtLeast(passthroughMajor, passthroughMinor):
		return []Finding{{ID: id, Status: Note, Found: "Linux " + k.Release + " has no passthrough", Needed: "Linux 6.9 or later" + needed}}
	case h.EUID != 0:
		return []Finding{{ID: id, Status: Note, Found: "Linux " + k.Release + " may have passthrough, for a daemon that runs as root", Needed: "a daemon that runs as root" + needed}}
	}
	return []Finding{ok(id, "available to a daemon that runs as root, if the kernel has CONFIG_FUSE_PASSTHROUGH; kv3fs serve says at its start whether it is on")}
}
