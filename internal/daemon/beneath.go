package daemon

import (
	"fmt"
	"log/slog"

	"github.com/kv3fs/kv3fs/internal/host"
)

// warnBeneath warns of a mount point in which clients can write, or have written, while
// nothing is mounted there: they do not find these files once the daemon serves. That only
// root and the daemon's user uid can write there is no reason for a warning. What cannot be
// seen is left to the doctor.
func warnBeneath(log *slog.Logger, point string, uid uint32) {
	b, err := host.Local().LookBeneath(point)
	if err != nil {
		return
	}
	if len(b.Names) > 0 {
		const most = 5
		log.Warn("the directory beneath the mount is not empty: clients do not see what is there; move it to the data directory or remove it, before the daemon starts",
			"mount", point, "files", b.Names[:min(len(b.Names), most)])
	}
	if who := b.OpenTo(uid); who != "" {
		cure := "chmod 000 it, and chattr +i against root, too"
		if uid != 0 {
			cure = "chmod 700 it" // the helper wants a directory that its user may write to
		}
		log.Warn("while no daemon serves the mount, "+who+" can write to the directory beneath, and will not find these files later: before mounting, "+cure,
			"mount", point, "mode", fmt.Sprintf("%#o", b.Mode))
	}
}
