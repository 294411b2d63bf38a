package doctor

import (
	"context"
	"fmt"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

const (
	// maxSensibleOpenFiles bounds the hard limit: upstream's client library allocates a
	// table of that length, with 16 bytes per entry. systemd sets a million; container
	// runtimes often set a thousand times that.
	maxSensibleOpenFiles = 1 << 24
	// engineOpenFiles is what an engine has open besides its storage: sockets, libraries,
	// the model's files.
	engineOpenFiles = 512
	// enoughOpenFiles is a hard limit that is enough for an engine about which nothing is
	// known.
	enoughOpenFiles = 4096
)

// checkLimits checks the limits that this process was started with. An engine started the
// same way has the same limits.
func checkLimits(ctx context.Context, o *Options, need engineconfig.Need) []Finding {
	limits, err := startLimits(ctx, o)
	if err != nil {
		return []Finding{unknown("limits", "the limits of processes", err)}
	}
	return []Finding{
		judgeOpenFiles(limits[host.OpenFiles], int64(need.OpenFiles), o.Engine),
		judgeLocked(limits[host.LockedMemory]),
	}
}

// startLimits returns the limits that this process was started with. Go's runtime raises
// the soft limit of open files when a program starts, and gives a child the original one:
// so a child, which is no Go program, has to read it.
func startLimits(ctx context.Context, o *Options) (map[string]host.Limit, error) {
	text, err := output(ctx, mountTimeout, "cat", o.Host.Path("/proc/self/limits"))
	if err != nil {
		return o.Host.Limits("self") // no cat in this container: the soft limit is the hard one
	}
	return host.ParseLimits(string(text))
}

func judgeOpenFiles(l host.Limit, storage int64, engine string) Finding {
	f := Finding{ID: "limit.nofile", Found: fmt.Sprintf("%s open files, hard limit %s", limitText(l.Soft), limitText(l.Hard))}
	process := "a process of " + engine
	soft := storage + engineOpenFiles
	need := soft
	if storage == 0 {
		need, process = enoughOpenFiles, "an engine"
	}
	switch {
	case l.Hard < need:
		f.Status, f.Needed = Failure, fmt.Sprintf("%d for %s", need, process)
		f.Fix = fmt.Sprintf("docker run --ulimit nofile=%d:%d ...   # or LimitNOFILE=%d in the systemd unit", 2*need, 2*need, 2*need)
	case l.Soft < soft:
		f.Status, f.Needed = Warning, fmt.Sprintf("%d for %s, which need not raise its own limit", need, process)
		f.Fix = fmt.Sprintf("ulimit -n %d   # before starting it", min(2*need, l.Hard))
	case l.Hard > maxSensibleOpenFiles:
		f.Status = Note
		f.Needed = fmt.Sprintf("below %d: DeepSeek's client library allocates a table of that length, which fails or takes gigabytes; kv3fs's does not", maxSensibleOpenFiles)
		f.Fix = "ulimit -Hn 1048576   # or docker run --ulimit nofile=1048576:1048576"
	}
	return f
}

func judgeLocked(l host.Limit) Finding {
	f := Finding{ID: "limit.memlock", Found: lockedText(l.Soft) + " of locked memory"}
	if l.Soft != host.Unlimited {
		f.Status = Note
		f.Needed = "unlimited, if an engine registers its buffers with RDMA NICs; kv3fs locks no memory"
		f.Fix = "ulimit -l unlimited   # or docker run --ulimit memlock=-1, LimitMEMLOCK=infinity"
	}
	return f
}

func limitText(n int64) string {
	if n == host.Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}

func lockedText(n int64) string {
	if n == host.Unlimited {
		return "unlimited amounts"
	}
	return bytesText(n)
}

// checkDaemonLimits checks how many rings and iovs the daemon can hold. That is a quarter
// of the number of its descriptors or half that of its mappings, whichever is less; each
// user other than root may have a quarter of it (docs/compatibility.md).
func checkDaemonLimits(h host.Host, d *wire.Daemon, registrations int64, forWhat string) []Finding {
	const id = "daemon.limits"
	pid := strconv.Itoa(d.PID)
	if !isDaemon(h, d) {
		return []Finding{{ID: id, Status: Note, Found: "the daemon's process " + pid + " is not visible here, for example because it is in another container",
			Needed: "nothing; the daemon's limits are not checked"}}
	}
	limits, err := h.Limits(pid)
	if err != nil {
		return []Finding{unknown(id, "the daemon's limits", err)}
	}
	maps, err := h.Sysctl("vm.max_map_count")
	if err != nil {
		return []Finding{unknown(id, "vm.max_map_count", err)}
	}
	files := limits[host.OpenFiles].Soft
	most := min(files/4, maps/2)
	f := Finding{ID: id, Found: fmt.Sprintf("at most %d rings and buffers (%s open files, vm.max_map_count %d)", most, limitText(files), maps)}
	need := max(registrations, 1024)
	switch {
	case most >= 4*need: // a user other than root may have a quarter
		if registrations > 0 {
			f.Found += fmt.Sprintf("; %s needs %d", forWhat, registrations)
		}
		return []Finding{f}
	case most < registrations:
		f.Status, f.Needed = Failure, fmt.Sprintf("%d for %s", registrations, forWhat)
	default:
		f.Status, f.Needed = Warning, fmt.Sprintf("%d, so that every user has enough: users other than root get a quarter each", 4*need)
	}
	f.Fix = fmt.Sprintf("LimitNOFILE=%d in kv3fs's systemd unit, or ulimit -n before starting it", 16*need)
	if maps/2 < files/4 {
		f.Fix = fmt.Sprintf("sysctl -w vm.max_map_count=%d", 16*need)
	}
	return []Finding{f}
}

// isDaemon reports whether the PID that a daemon reports is valid here. It is not if the
// daemon is in another PID namespace.
func isDaemon(h host.Host, d *wire.Daemon) bool {
	args, err := h.Args(d.PID)
	return err == nil && servesMount(args)
}
