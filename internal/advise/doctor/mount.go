package doctor

import (
	"cmp"
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

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// mountTimeout is for calls that a living daemon answers from memory.
const mountTimeout = 3 * time.Second

// dead lists the errors that the kernel returns for a FUSE daemon that has ended.
var dead = [...]syscall.Errno{syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ENODEV}

// checkMounts chooses the mount to examine, by request or by where the engine stores,
// and examines it. It checks only whether the other mounts answer. point is "" if no
// mount is usable; daemon is nil if the mount does not describe its daemon.
func checkMounts(ctx context.Context, o *Options, requested string, paths []string, optional bool) (point string, daemon *wire.Daemon, all []Finding) {
	mounts, err := o.Host.Mounts()
	if err != nil {
		return "", nil, []Finding{cannotInspect("what is mounted", err)}
	}
	known := probeMounts(ctx, o, host.HF3FS(mounts))
	chosen, finding := chooseMount(ctx, o, requested, paths, known, mounts)
	if optional {
		finding.Status = min(finding.Status, Note)
	}
	if finding.Status > OK {
		all = append(all, finding)
	}
	var others []Finding
	for _, s := range known {
		switch {
		case s.point == chosen && s.err != nil && !errors.Is(s.err, errNoAnswer):
			all = append(all, cannotInspect("the state of "+chosen, s.err))
		case s.point == chosen && !s.answers():
			all = append(all, judgeUnresponsive(ctx, "mount", o, s.point, mounts, s.facts.OpenErr))
		case s.point == chosen:
			findings, usable := judgeMount(chosen, s.facts, mounts)
			all, daemon = append(all, findings...), s.facts.Daemon
			if usable {
				point = chosen
			}
		case errors.Is(s.err, errNoAnswer) || s.facts.OpenErr.is(dead[:]...):
			// A program that visits every mount hangs or fails here.
			f := judgeUnresponsive(ctx, "mount.other", o, s.point, mounts, s.facts.OpenErr)
			f.Status = Warning
			if requested != "" { // it was not asked about
				f.Status = Note
			}
			others = append(others, f)
		}
	}
	if elsewhere := chosen == "" && len(known) > 0; !optional && !elsewhere {
		all = append(all, checkBeneath(ctx, o, cmp.Or(chosen, requested), mounts)...)
	}
	return point, daemon, append(all, others...)
}

// mountAnswer holds what a 3FS mount answered.
type mountAnswer struct {
	point string
	facts mountFacts
	err   error
}

func (s mountAnswer) answers() bool { return s.err == nil && !s.facts.OpenErr.failed() }

// probeMounts probes all mounts in parallel.
func probeMounts(ctx context.Context, o *Options, points []string) []mountAnswer {
	all := make([]mountAnswer, len(points))
	var group sync.WaitGroup
	for i, point := range points {
		group.Go(func() {
			facts, err := runProbe[mountFacts](ctx, o, mountTimeout, "mount", point)
			all[i] = mountAnswer{point, facts, err}
		})
	}
	group.Wait()
	return all
}

// chooseMount decides which mount to examine. The finding is about that choice.
func chooseMount(ctx context.Context, o *Options, requested string, paths []string, known []mountAnswer, mounts []host.Mount) (string, Finding) {
	const id = "mount.path"
	points := make([]string, len(known))
	for i, s := range known {
		points[i] = s.point
	}
	if requested == "" {
		return defaultMount(ctx, o, paths, known, points, mounts)
	}
	abs, err := absolute(ctx, o, requested)
	switch {
	case errors.Is(err, errNoAnswer):
		return "", Finding{ID: id, Status: Failure, Found: "the working directory does not answer, so the path of " + requested + " is unknown",
			Needed: "an absolute path, or another working directory", Fix: "cd /"}
	case err != nil:
		return "", unknown(id, "the path of "+requested, err)
	case slices.Contains(points, abs):
		return abs, Finding{ID: id}
	}
	facts, err := runProbe[mountFacts](ctx, o, mountTimeout, "mount", abs)
	switch {
	case errors.Is(err, errNoAnswer):
		return "", Finding{ID: id, Status: Failure, Found: abs + " does not answer: a mount on its path hangs",
			Needed: "a path to the mount that does not hang"}
	case err != nil:
		return "", unknown(id, "what "+abs+" is", err)
	case facts.Canonical != abs && slices.Contains(points, facts.Canonical):
		return facts.Canonical, Finding{ID: id, Status: Warning, Found: fmt.Sprintf("%s leads to %s through a symbolic link", abs, facts.Canonical),
			Needed: "the mount point as the kernel shows it: engines compare the two byte for byte",
			Fix:    "write " + facts.Canonical + " as the mount point in every engine's configuration"}
	}
	if point := holder(points, facts.Canonical, mounts); point != "" {
		return point, Finding{ID: id, Status: Note, Found: fmt.Sprintf("%s is a directory on the mount %s", abs, point)}
	}
	found := "no 3FS is mounted at " + abs
	if m, there := host.At(mounts, abs); there {
		found = fmt.Sprintf("the mount at %s has type %s", abs, m.Type)
	}
	f := Finding{ID: "mount", Status: Failure, Found: found, Needed: "a mount of type " + host.HF3FSType + ", from a running daemon"}
	if len(known) > 0 {
		f.Found += fmt.Sprintf("; 3FS is mounted at %s", strings.Join(points, ", "))
	}
	f.Fix = mountHere(o, abs, facts, known)
	return "", f
}

// mountHere returns the line that brings a 3FS to a path without one, or the doctor to the
// path that has one.
func mountHere(o *Options, abs string, at mountFacts, known []mountAnswer) string {
	empty := at.Canonical != "" && !at.Occupied // a directory that waits for a mount
	switch living := slices.IndexFunc(known, mountAnswer.answers); {
	case living >= 0 && o.Mount == "" && abs == engineconfig.FixedMount(o.Engine):
		return bindAt(known[living].point, abs)
	case living >= 0 && o.Mount == "" && o.ConfigFile != "":
		return fmt.Sprintf("write %s as the mount point in %s", known[living].point, o.ConfigFile)
	case living >= 0 && !empty:
		return "kv3fs doctor --mount " + quote(known[living].point)
	case at.Occupied:
		return "kv3fs serve --data /var/lib/kv3fs --mount /mnt/3fs   # " + abs + " has other files"
	}
	return "kv3fs serve --data /var/lib/kv3fs --mount " + quote(abs)
}

// bindAt returns a line that makes a mount visible at another path, too, for an engine whose
// path is built in.
func bindAt(point, at string) string {
	return fmt.Sprintf("mkdir -p %[2]s && mount --bind %[1]s %[2]s", quote(point), quote(at))
}

// defaultMount chooses a mount if none was requested: the one that holds the engine's
// files, else the first that answers.
func defaultMount(ctx context.Context, o *Options, paths []string, known []mountAnswer, points []string, mounts []host.Mount) (string, Finding) {
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
		// The path is not below a mount, but it may lead there through a symbolic link.
		if facts, err := runProbe[[]pathFacts](ctx, o, mountTimeout, "paths", paths[0]); err == nil {
			if point := holder(points, facts[0].Canonical, mounts); point != "" {
				return point, Finding{ID: id}
			}
		}
	}
	first := max(slices.IndexFunc(known, mountAnswer.answers), 0)
	another := points[(first+1)%len(points)]
	return points[first], Finding{ID: id, Status: Note,
		Found:  fmt.Sprintf("%d are mounted (%s); examined %s", len(points), strings.Join(points, ", "), points[first]),
		Needed: "--mount, to examine another one", Fix: "kv3fs doctor --mount " + quote(another)}
}

// holder returns the innermost mount point that path is at or below. It returns ""
// if there is none, or if another file system is mounted in between.
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

// absolute returns the absolute form of path. It looks up the working directory only
// if it must: that may be on a mount that hangs.
func absolute(ctx context.Context, o *Options, path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	return runProbe[string](ctx, o, mountTimeout, "absolute", path)
}

// mountFacts describes a mount that answers.
type mountFacts struct {
	Canonical string
	OpenErr   probeError // from opening its root
	Occupied  bool       // it is a directory with other files than a 3FS's, or no directory
	Magic     bool       // it answers the ioctl by which clients recognise a 3FS
	Iovs      probeError // from listing 3fs-virt/iovs
	Daemon    *wire.Daemon
}

// judgeMount judges a mount that answers.
func judgeMount(point string, f mountFacts, mounts []host.Mount) (all []Finding, usable bool) {
	const id = "mount"
	switch {
	case f.Iovs.failed():
		return []Finding{{ID: id, Status: Failure, Found: fmt.Sprintf("%s/%s/iovs: %s", point, host.VirtDir, f.Iovs.Text),
			Needed: "the directory where clients register their memory; a container must mount it as well as the data",
			Fix:    bindVirtual(point, mounts)}}, false
	case !f.Magic:
		return []Finding{{ID: id, Status: Failure, Found: point + " has type " + host.HF3FSType + ", but does not answer the ioctl by which clients recognise a 3FS",
			Needed: fmt.Sprintf("%#x from ioctl %#x", wire.Magic, wire.IoctlGetMagic), Fix: "kv3fs serve --data /var/lib/kv3fs --mount " + quote(point) + "   # after umount " + quote(point)}}, false
	}
	all = append(all, ok(id, "%s answers", point))
	if f.Daemon == nil {
		return append(all, Finding{ID: "daemon", Status: Note, Found: "the mount does not identify its daemon: it is not kv3fs, or an older one, or this is only a part of its mount",
			Needed: "nothing; checks that need the daemon's answers are left out (--data names its directory)"}), true
	}
	d := f.Daemon
	all = append(all, ok("daemon", "kv3fs %s, pid %d, serves %s since %s (hf3fs.%s, --io %s)", d.Version, d.PID, d.Data, d.Started, d.Cluster, d.IO))
	if d.Unseen {
		all = append(all, Finding{ID: "daemon.pids", Status: Warning, Found: "the daemon is in a PID namespace in which it cannot see the processes of its clients",
			Needed: "the host's PID namespace: without it, supplementary groups count only for files that a client has open, and what killed clients had registered ends some seconds late",
			Fix:    "hostPID: true in the daemon's pod, or docker run --pid=host"})
	}
	return all, true
}

// bindVirtual returns a line that adds the virtual directory to a mount of a part of a 3FS: from
// another mount of the same 3FS, or, where there is none, as in a container, for its host.
func bindVirtual(point string, mounts []host.Mount) string {
	at := filepath.Join(point, host.VirtDir)
	mine, _ := host.At(mounts, point)
	for _, m := range mounts {
		if m.Device == mine.Device && m.Root == "/" && m.Point != point {
			return fmt.Sprintf("mkdir -p %s && mount --bind %s %[1]s", quote(at), quote(filepath.Join(m.Point, host.VirtDir)))
		}
	}
	return fmt.Sprintf("write -v MOUNT/%s:%s, with the host's mount, after docker run", host.VirtDir, quote(at))
}

// cannotInspect reports a mount that could not be examined. That is more than a note,
// because most other checks depend on the mount.
func cannotInspect(what string, err error) Finding {
	f := unknown("mount", what, err)
	f.Status = Warning
	return f
}

// judgeUnresponsive judges a mount that does not answer, or answers with an error.
func judgeUnresponsive(ctx context.Context, id string, o *Options, point string, mounts []host.Mount, look probeError) Finding {
	f := Finding{ID: id, Status: Failure}
	switch {
	case !look.failed():
		f.Found = fmt.Sprintf("%s does not answer within %v: its daemon is alive but hangs, or its disk does", point, mountTimeout)
		f.Needed = "a daemon that answers; until then every program that touches the mount hangs"
		if _, found := host.At(mounts, point); found {
			sudo := ""
			if o.Host.EUID != 0 {
				sudo = "sudo "
			}
			// By path: the number of its connection may be another mount's when somebody runs it.
			f.Fix = fmt.Sprintf("%[1]sumount -f %[2]s || %[1]sumount -l %[2]s   # ends every call to the mount with an error, also where it says that the mount is busy", sudo, quote(point))
		}
		if p, found := daemonOf(ctx, o, point); found {
			f.Found += fmt.Sprintf("; kv3fs is pid %d, state %s", p.PID, p.State)
			f.Fix = fmt.Sprintf("kill %d; sleep 15; kill -9 %d   # then start it again: it replaces the mount", p.PID, p.PID)
			if p.State == "T" || p.State == "t" {
				f.Fix = fmt.Sprintf("kill -CONT %d   # it was stopped, by SIGSTOP or a debugger", p.PID)
			}
		}
	case look.is(dead[:]...):
		f.Found = fmt.Sprintf("the daemon of %s is dead (%v)", point, look.Errno)
		f.Needed = "a daemon; kv3fs serve replaces a dead mount by itself, or unmount it:"
		f.Fix = "umount -l " + quote(point)
		if o.Host.EUID != 0 {
			f.Fix = "fusermount3 -uz " + quote(point)
		}
		f.Fix += strings.Repeat("; "+f.Fix, max(countAt(mounts, point)-1, 0)) // one can cover another
	case look.is(syscall.EACCES, syscall.EPERM):
		f.Found = fmt.Sprintf("%s: %s", point, look.Text)
		f.Needed = "a daemon that lets other users access its mount: one that runs as root does, others need --allow-other"
		f.Fix = restart(ctx, o, point, forOthers)
		if f.Fix != "" {
			f.Fix += "   # as the daemon's user"
		}
		if !o.Host.UserAllowOther() {
			f.Needed += ", and user_allow_other in /etc/fuse.conf"
			f.Fix = cmp.Or(f.Fix, allowOthers)
		}
	default:
		f.Found = fmt.Sprintf("%s: %s", point, look.Text)
		f.Needed = "a mount that answers"
	}
	return f
}

// countAt returns how many 3FS mounts are at a point, one on the other.
func countAt(mounts []host.Mount, point string) (n int) {
	for _, m := range mounts {
		if m.Point == point && m.Type == host.HF3FSType {
			n++
		}
	}
	return n
}

// quote returns a path as one shell word.
func quote(path string) string {
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%=", r))
	}) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// readable returns the error of listing a directory.
func readable(dir string) probeError {
	f, err := os.Open(dir)
	if err != nil {
		return probeErrorOf(err)
	}
	defer f.Close()
	_, err = f.Readdirnames(-1)
	return probeErrorOf(err)
}

// Served is a mount of a 3FS on this host, and what it says of its daemon.
type Served struct {
	Point  string
	Daemon *wire.Daemon // nil: it says nothing, as that of another 3FS, or does not answer
	Err    error        // why it does not
}

// Mounts asks mounts of this host for their daemons, all at once. It needs Host and Probe, and returns in bounded time whatever hangs.
func Mounts(ctx context.Context, o Options, points []string) []Served {
	var all []Served
	for _, m := range probeMounts(ctx, &o, points) {
		s := Served{Point: m.point, Daemon: m.facts.Daemon, Err: m.err}
		if s.Err == nil && m.facts.OpenErr.failed() {
			s.Err = errors.New(m.facts.OpenErr.Text)
		}
		all = append(all, s)
	}
	return all
}
