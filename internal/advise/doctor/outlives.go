package doctor

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Linux 6.9 sends the requests again that a daemon had not answered.
const resendMajor, resendMinor = 6, 9

// checkOutlives says what of a daemon's clients goes on when it is restarted, upgraded, or crashes.
func checkOutlives(h host.Host, d *wire.Daemon) []Finding {
	const id = "restart"
	if d == nil || d.Outlives == "" {
		return nil
	}
	const table = "docs/operations.md has the table"
	k, err := h.Kernel()
	resends := err == nil && k.AtLeast(resendMajor, resendMinor)
	const hold = "FileDescriptorStoreMax=64 in the unit of systemd, or kv3fs hold -- serve ..."
	var all []Finding
	switch {
	case d.Outlives == wire.OutlivesMount && resends:
		all = append(all, ok(id, "rings, open files, mappings and locks go on over an upgrade, a restart and a crash"))
	case d.Outlives == wire.OutlivesMount || d.Outlives == wire.OutlivesRings && !resends:
		all = append(all, Finding{ID: id, Status: Note, Found: "rings go on over a restart and a crash; what is open on the mount does not: Linux " + k.Release + " does not send requests again",
			Needed: "Linux 6.9 or later, for engines that use files of the mount; " + table, Fix: "upgrade the kernel"})
	case d.Outlives == wire.OutlivesRings:
		all = append(all, Finding{ID: id, Status: Note, Found: "rings go on over an upgrade, a restart and a crash; what is open on the mount goes on over an upgrade only: nobody keeps the mount's descriptor",
			Needed: "somebody who keeps it, for engines that use files of the mount; " + table, Fix: hold})
	default:
		all = append(all, Finding{ID: id, Status: Note, Found: "engines have to be restarted with the daemon: " + d.Outlives, Needed: "state in a tmpfs that outlives the daemon; " + table})
	}
	if d.NoHandles && d.Outlives != "" {
		all = append(all, Finding{ID: id + ".handles", Status: Note, Found: "the data directory's files cannot be opened by handle (an overlay without index=on,nfs_export=on, or a daemon without CAP_DAC_READ_SEARCH)",
			Needed: "handles, if engines remove files that they have open: over a restart these are lost"})
	}
	const timeout = "fs.fuse.default_request_timeout" // Linux 6.14
	if seconds, err := h.Sysctl(timeout); err == nil && seconds > 0 {
		all = append(all, Finding{ID: id + ".timeout", Status: Warning, Found: fmt.Sprintf("%s is %d: the kernel ends a mount for good whose daemon does not answer for that many seconds", timeout, seconds),
			Needed: "0, or more than a restart takes", Fix: "sysctl -w " + timeout + "=0"})
	}
	return all
}
