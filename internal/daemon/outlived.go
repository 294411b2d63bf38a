package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/host"
)

// A process may hold files of a daemon that has ended: it was cut off, or the daemon was killed.
// With passthrough, the kernel goes on reading and writing what is open after a kill, and what is
// mapped after any end. The next daemon says so. It knows the former ones by the device numbers
// of their mounts, which the kernel gives to no other file system while somebody holds a file, and to the next one after that.

const (
	// holdersTime bounds the search for the holders of a mount.
	holdersTime = time.Second
	mostMounts  = 16
)

// formerMount is the mount of a daemon that has ended, or of this one.
type formerMount struct {
	boot  string
	minor uint32 // of its device
}

func mountsFile(dir string) string { return filepath.Join(dir, "mounts") }

// formerMounts returns the mounts that were noted while this kernel has run.
func (s *state) formerMounts(boot string) (all []formerMount) {
	for _, dir := range s.dead {
		text, _ := os.ReadFile(mountsFile(dir))
		for line := range strings.Lines(string(text)) {
			var m formerMount
			if n, _ := fmt.Sscanf(line, "%s %d", &m.boot, &m.minor); n == 2 && m.boot == boot && !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	return all[max(0, len(all)-mostMounts):]
}

// noteMounts has the next daemon look at these mounts. It does without on a full disk.
func (s *state) noteMounts(all []formerMount, log *slog.Logger) {
	if s.dir == "" {
		return
	}
	var text strings.Builder
	for _, m := range all {
		if m.boot != "" {
			fmt.Fprintln(&text, m.boot, m.minor)
		}
	}
	if err := os.WriteFile(mountsFile(s.dir), []byte(text.String()), 0o600); err != nil {
		log.Warn("the next daemon will not say who holds files of this one", "err", err)
	}
}

// stillHeld logs who holds files of former daemons, and returns the mounts that are to be looked
// at again.
func stillHeld(h host.Host, former []formerMount, log *slog.Logger) (held []formerMount) {
	for _, m := range former {
		if reused(h, m.minor) {
			continue
		}
		holders := h.Holders(unix.Mkdev(0, m.minor), holdersTime)
		if len(holders.Processes) > 0 {
			log.Warn("processes still hold files of a daemon that has ended: what they have mapped, or open since a daemon was killed, can change without this daemon's knowledge; restart them", "processes", holders.String())
		}
		if len(holders.Processes) > 0 || !holders.Complete {
			held = append(held, m)
		}
	}
	return held
}

// reused reports whether the device number of a former mount is that of another file system
// now, as is sure of one whose daemon lives.
func reused(h host.Host, minor uint32) bool {
	mounts, _ := h.Mounts()
	at, found := mountOf(mounts, minor)
	return found && (!strings.HasPrefix(at.Type, "fuse") || !fuseserver.Dead(at.Point))
}

// mountOf returns a mount of the device with a minor number.
func mountOf(mounts []host.Mount, minor uint32) (m host.Mount, found bool) {
	device := fmt.Sprintf("0:%d", minor)
	i := slices.IndexFunc(mounts, func(m host.Mount) bool { return m.Device == device })
	if i < 0 {
		return m, false
	}
	return mounts[i], true
}
