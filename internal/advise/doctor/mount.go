package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// mountPatience is for questions that a living daemon answers from memory.
const mountPatience = 3 * time.Second

// dead are the errnos with which the kernel answers for a FUSE daemon that is no
// more.
var dead = [...]syscall.Errno{syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ENODEV}

// checkMounts finds the mount that is meant, by what was asked for or by where
// the engine stores, and looks at it, and at the others only whether they answer.
// point is "" when there is none, or none that could be used; daemon is nil when
// it is not known.
func checkMounts(ctx context.Context, o *Options, asked string, paths []string, optional bool) (point string, daemon *wire.Daemon, all []Finding) {
	mounts, err := o.Host.Mounts()
	if err != nil {
		return "", nil, []Finding{unseen("what is mounted", err)}
	}
	known := lookAt(ctx, o, host.HF3FS(mounts))
	chosen, finding := chooseMount(ctx, o, asked, paths, known, mounts)
	if optional {
		finding.Status = min(finding.Status, Note)
	}
	if finding.Status > OK {
		all = append(all, finding)
	}
	var others []Finding
	for _, s := range known {
		switch {
		case s.point == chosen && s.err != nil && !errors.Is(s.err, errHung):
			all = append(all, unseen("how "+chosen+" is", s.err))
		case s.point == chosen && !s.answers():
			all = append(all, silent(ctx, "mount", o, s.point, mounts, s.facts.Look))
		case s.point == chosen:
			findings, usable := judgeMount(chosen, s.facts)
			all, daemon = append(all, findings...), s.facts.Daemon
			if usable {
				point = chosen
			}
		case errors.Is(s.err, errHung) || s.facts.Look.is(dead[:]...):
			// A program that walks the mounts hangs or fails at this one.
			f := silent(ctx, "mount.other", o, s.point, mounts, s.facts.Look)
			f.Status = Warning
			others = append(others, f)
		}
	}
	return point, daemon, append(all, others...)
}

// sight is a 3FS mount and what it answered.
type sight struct {
	point string
	facts mountFacts
	err   error
}

func (s sight) answers() bool { return s.err == nil && !s.facts.Look.any() }

// lookAt asks all mounts at once.
func lookAt(ctx context.Context, o *Options, points []string) []sight {
	all := make([]sight, len(points))
	var group sync.WaitGroup
	for i, point := range points {
		group.Go(func() {
			facts, err := ask[mountFacts](ctx, o, mountPatience, "mount", point)
			all[i] = sight{point, facts, err}
		})
	}
	group.Wait()
	return all
}

// chooseMount decides which 3FS is meant. The finding is about that choice.
func chooseMount(ctx context.Context, o *Options, asked string, paths []string, known []sight, mounts []host.Mount) (string, Finding) {
	const id = "mount.path"
	points := make([]string, len(known))
	for i, s := range known {
		points[i] = s.point
	}
	if asked == "" {
		return defaultMount(ctx, o, paths, known, points, mounts)
	}
	abs, err := absolute(ctx, o, asked)
	switch {
	case errors.Is(err, errHung):
		return "", Finding{ID: id, Status: Failure, Found: "the working directory does not answer, so nobody knows where " + asked + " is",
			Needed: "a name that begins with a slash, or another directory to start from", Fix: "cd /"}
	case err != nil:
		return "", unknown(id, "where "+asked+" is", err)
	case slices.Contains(points, abs):
		return abs, Finding{ID: id}
	}
	facts, err := ask[mountFacts](ctx, o, mountPatience, "mount", abs)
	switch {
	case errors.Is(err, errHung):
		return "", Finding{ID: id, Status: Failure, Found: abs + " does not answer: something on the way to it hangs",
			Needed: "a path that leads to the mount"}
	case err != nil:
		return "", unknown(id, "what "+abs+" is", err)
	case facts.Canonical != abs && slices.Contains(points, facts.Canonical):
		return facts.Canonical, Finding{ID: id, Status: Warning, Found: fmt.Sprintf("%s is a way to %s through a symbolic link", abs, facts.Canonical),
			Needed: "the mount point as the kernel shows it: engines compare the two byte for byte",
			Fix:    "write " + facts.Canonical + " wherever an engine is told the mount point"}
	}
	if point := holder(points, facts.Canonical, mounts); point != "" {
		return point, Finding{ID: id, Status: Note, Found: fmt.Sprintf("%s is a directory on the mount %s", abs, point)}
	}
	found := "no 3FS is mounted at " + abs
	if m, there := host.At(mounts, abs); there {
		found = fmt.Sprintf("what is mounted at %s is of type %s", abs, m.Type)
	}
	if len(known) > 0 {
		found += fmt.Sprintf("; there is 3FS at %s", strings.Join(points, ", "))
	}
	return "", Finding{ID: "mount", Status: Failure, Found: found, Needed: "a mount of type " + host.HF3FSType + ", from a running daemon",
		Fix: "kv3fs serve --data /var/lib/kv3fs --mount " + quote(abs)}
}

// defaultMount is for want of a name: the mount that the engine's files are on,
// else the first that answers.
func defaultMount(ctx context.Context, o *Options, paths []string, known []sight, points []string, mounts []host.Mount) (string, Finding) {
	const id = "mount.path"
	switch len(points) {
	case 0:
		return "", Finding{ID: "mount", Status: Failure, Found: "no 3FS is mounted here",
			Needed: "a mount of type " + host.HF3FSType + ", from a running daemon",
			Fix:    "kv3fs serve --data /var/lib/kv3fs --mount /mnt/3fs"}
	case 1:
		return points[0], Finding{ID: id}
	}
	if len(paths) > 0 {
		if point := holder(points, paths[0], mounts); point != "" {
			return point, Finding{ID: id}
		}
		// Not by name, but perhaps through a symbolic link.
		if facts, err := ask[[]pathFacts](ctx, o, mountPatience, "paths", paths[0]); err == nil {
			if point := holder(points, facts[0].Canonical, mounts); point != "" {
				return point, Finding{ID: id}
			}
		}
	}
	first := max(slices.IndexFunc(known, sight.answers), 0)
	another := points[(first+1)%len(points)]
	return points[first], Finding{ID: id, Status: Note,
		Found:  fmt.Sprintf("%d are mounted (%s); looked at %s", len(points), strings.Join(points, ", "), points[first]),
		Needed: "to be told which one is meant", Fix: "kv3fs doctor --mount " + quote(another)}
}

// holder is the innermost of points that path is at or below, "" for none or
// where another file system is in between.
func holder(points []string, path string, mounts []host.Mount) (found string) {
	for _, point := range points {
		if host.Within(path, point) && len(point) > len(found) {
			found = point
		}
	}
	if m, _ := host.Holding(mounts, path); m.Type != host.HF3FSType && len(m.Point) > len(found) {
		return ""
	}
	return found
}

// absolute is what path is called from everywhere. The working directory is
// asked for its name only if it matters: it may be on a mount that hangs.
func absolute(ctx context.Context, o *Options, path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	return ask[string](ctx, o, mountPatience, "absolute", path)
}

// mountFacts are what a mount answers.
type mountFacts struct {
	Canonical string       `json:"canonical"`
	Look      trouble      `json:"look"`  // of looking at its root
	Magic     bool         `json:"magic"` // the ioctl by which clients know a 3FS
	Iovs      trouble      `json:"iovs"`  // of listing 3fs-virt/iovs
	Daemon    *wire.Daemon `json:"daemon"`
}

// judgeMount is about a mount that answers.
func judgeMount(point string, f mountFacts) (all []Finding, usable bool) {
	const id = "mount"
	switch {
	case f.Iovs.any():
		return []Finding{{ID: id, Status: Failure, Found: fmt.Sprintf("%s/%s/iovs: %s", point, host.VirtDir, f.Iovs.Text),
			Needed: "the directory where clients register their memory; in a container it is mounted beside the data",
			Fix:    fmt.Sprintf("mount --bind /HOST/3FS/%s %s", host.VirtDir, quote(filepath.Join(point, host.VirtDir)))}}, false
	case !f.Magic:
		return []Finding{{ID: id, Status: Failure, Found: point + " is of type " + host.HF3FSType + " and does not answer the ioctl by which clients know a 3FS",
			Needed: fmt.Sprintf("%#x from ioctl %#x", wire.Magic, wire.IoctlGetMagic), Fix: "kv3fs serve --data /var/lib/kv3fs --mount DIR"}}, false
	}
	all = append(all, ok(id, "%s answers", point))
	if f.Daemon == nil {
		return append(all, Finding{ID: "daemon", Status: Note, Found: "not kv3fs, or an older one, or this is only a part of its mount: it does not say who it is",
			Needed: "nothing; what would be asked of the daemon is left out (--data names its directory)"}), true
	}
	d := f.Daemon
	return append(all, ok("daemon", "kv3fs %s, pid %d, serves %s since %s (hf3fs.%s, --io %s)", d.Version, d.PID, d.Data, d.Started, d.Cluster, d.IO)), true
}

// unseen is about a mount that could not be looked at. Too much hangs on it for a
// note.
func unseen(what string, err error) Finding {
	f := unknown("mount", what, err)
	f.Status = Warning
	return f
}

// silent is about a mount that does not answer, or with an error.
func silent(ctx context.Context, id string, o *Options, point string, mounts []host.Mount, look trouble) Finding {
	f := Finding{ID: id, Status: Failure}
	switch {
	case !look.any():
		f.Found = fmt.Sprintf("%s does not answer within %v: its daemon is alive and hangs, or its disk does", point, mountPatience)
		f.Needed = "a daemon that answers; meanwhile whoever touches the mount hangs, too"
		if m, found := host.At(mounts, point); found {
			_, connection, _ := strings.Cut(m.Device, ":")
			const control = "/sys/fs/fuse/connections"
			f.Fix = fmt.Sprintf("echo 1 > %s/%s/abort   # cuts everybody off", control, connection)
			if !o.Host.Exists(control + "/" + connection) {
				f.Fix = "mount -t fusectl none " + control + " && " + f.Fix
			}
		}
		if p, found := daemonOf(ctx, o, point); found {
			f.Found += fmt.Sprintf("; kv3fs is pid %d, state %s", p.PID, p.State)
			f.Fix = fmt.Sprintf("kill %d; sleep 15; kill -9 %d   # and start it again: it takes the mount over", p.PID, p.PID)
			if p.State == "T" || p.State == "t" {
				f.Fix = fmt.Sprintf("kill -CONT %d   # somebody has stopped it, with SIGSTOP or a debugger", p.PID)
			}
		}
	case look.is(dead[:]...):
		f.Found = fmt.Sprintf("%s is the mount of a daemon that is dead (%v)", point, look.Errno)
		f.Needed = "a daemon; kv3fs serve takes a dead mount over by itself, or unmount it:"
		f.Fix = "umount -l " + quote(point)
		if o.Host.EUID != 0 {
			f.Fix = "fusermount3 -uz " + quote(point)
		}
	case look.is(syscall.EACCES, syscall.EPERM):
		f.Found = fmt.Sprintf("%s: %s", point, look.Text)
		f.Needed = "a daemon that lets other users in: one of root does, others need --allow-other"
		f.Fix = "kv3fs serve --allow-other ...   # and user_allow_other in /etc/fuse.conf"
	default:
		f.Found = fmt.Sprintf("%s: %s", point, look.Text)
		f.Needed = "a mount that answers"
	}
	return f
}

// quote makes one word for a shell of a path.
func quote(path string) string {
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%=", r))
	}) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// readable says whether a directory can be listed, and why not.
func readable(dir string) trouble {
	f, err := os.Open(dir)
	if err != nil {
		return troubleOf(err)
	}
	defer f.Close()
	_, err = f.Readdirnames(-1)
	return troubleOf(err)
}
