package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/host"
)

// beneathFacts describes the directory that a mount covers.
type beneathFacts struct {
	Dir  host.Beneath
	Seen bool // it exists, and this user can see it
	Err  probeError
}

func probeBeneath(point string) (f beneathFacts) {
	dir, err := host.Local().LookBeneath(point)
	switch {
	case err == nil:
		f.Dir, f.Seen = dir, true
	case !errors.Is(err, host.ErrHidden) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		f.Err = probeErrorOf(err)
	}
	return f
}

// checkBeneath examines the directory beneath the mount at point, or at point where nothing
// is mounted. Clients write there when no daemon serves the mount, and do not find it later.
func checkBeneath(ctx context.Context, o *Options, point string, mounts []host.Mount) []Finding {
	if !filepath.IsAbs(point) {
		return nil
	}
	point = filepath.Clean(point)
	if _, part := host.At(mounts, filepath.Join(point, host.VirtDir)); part {
		return nil // a container's directory, in which only parts of the mount are mounted
	}
	facts, err := runProbe[beneathFacts](ctx, o, dataTimeout, "beneath", point)
	switch m, there := host.At(mounts, point); {
	case there && m.Type != host.HF3FSType:
		return nil // another file system, which is no directory to be protected
	case err != nil:
		return []Finding{unknown("mount.beneath", "what is beneath "+point, err)}
	case facts.Err.failed():
		return []Finding{unknown("mount.beneath", "what is beneath "+point, errors.New(facts.Err.Text))}
	case !facts.Seen:
		return nil
	case there:
		return []Finding{judgeBeneath(point, facts.Dir, true, userOf(m))}
	default: // its owner may be the daemon's user
		return []Finding{judgeBeneath(point, facts.Dir, false, facts.Dir.UID)}
	}
}

// userOf returns the user of the daemon that mounted m.
func userOf(m host.Mount) uint32 {
	for option := range strings.SplitSeq(m.Super, ",") {
		if text, ok := strings.CutPrefix(option, "user_id="); ok {
			uid, err := strconv.ParseUint(text, 10, 32)
			if err == nil {
				return uint32(uid)
			}
		}
	}
	return 0
}

func judgeBeneath(point string, b host.Beneath, mounted bool, daemon uint32) Finding {
	f := Finding{ID: "mount.beneath", Status: Warning, Needed: "an empty directory in which clients cannot write while no daemon serves the mount"}
	where := point + ", where nothing is mounted,"
	if mounted {
		where = "the directory beneath the mount " + point
	}
	who := b.OpenTo(daemon)
	switch {
	case len(b.Names) > 0:
		const most = 4
		var list []string
		for _, name := range b.Names[:min(len(b.Names), most)] {
			list = append(list, shown(name))
		}
		if len(b.Names) > most {
			list = append(list, "...")
		}
		f.Found = fmt.Sprintf("%s has files (%s): clients do not see them while a daemon serves the mount", where, strings.Join(list, ", "))
		f.Fix = inBeneath(point, mounted, "ls -lA %s")
	case who != "":
		f.Found = fmt.Sprintf("%s is open to %s (mode %#o): what clients write there, they do not find once a daemon serves the mount", where, who, b.Mode)
		f.Fix = inBeneath(point, mounted, "chmod 000 %[1]s && chattr +i %[1]s")
		if daemon != 0 { // fusermount3 wants a directory that its user may write to
			f.Fix = inBeneath(point, mounted, "chmod 700 %s")
		}
	case b.Sealed:
		return ok(f.ID, "%s is empty, and nobody can write to it", where)
	default:
		return ok(f.ID, "%s is empty, and open to no user but root and the daemon's", where)
	}
	return f
}

// inBeneath returns a line that runs a command on the directory beneath a mount, in a mount
// namespace of its own, so that clients notice nothing.
func inBeneath(point string, mounted bool, command string) string {
	if !mounted {
		return fmt.Sprintf(command, quote(point))
	}
	return fmt.Sprintf(`unshare -m sh -c 'mount --bind "$0" /mnt && %s' %s %s`, fmt.Sprintf(command, `"/mnt/$1"`), quote(filepath.Dir(point)), quote(filepath.Base(point)))
}
