package doctor

import (
	"fmt"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/wire"
)

const (
	// Upstream's client library makes a table of the hard limit's length, 16
	// bytes an entry. A million is what systemd gives; container runtimes often
	// give a thousand times that.
	sensibleOpenFiles = 1 << 24
	// enoughOpenFiles is for an engine of which nothing is known.
	enoughOpenFiles = 4096
)

// checkLimits is about the limits of this process, which an engine that is
// started the same way has, too.
func checkLimits(h host.Host, need engineconfig.Need, engine string) []Finding {
	limits, err := h.Limits("self")
	if err != nil {
		return []Finding{unknown("limits", "limits of processes", err)}
	}
	return []Finding{
		judgeOpenFiles(limits[host.OpenFiles], int64(need.OpenFiles), engine),
		judgeLocked(limits[host.LockedMemory]),
	}
}

func judgeOpenFiles(l host.Limit, need int64, engine string) Finding {
	f := Finding{ID: "limit.nofile", Found: fmt.Sprintf("%s open files, at most %s", limitText(l.Soft), limitText(l.Hard))}
	who := "a process of " + engine
	if need == 0 {
		need, who = enoughOpenFiles, "an engine"
	}
	switch {
	case l.Hard < need:
		f.Status, f.Needed = Failure, fmt.Sprintf("%d for %s", need, who)
		f.Fix = fmt.Sprintf("docker run --ulimit nofile=%d:%d ...   # or LimitNOFILE=%d in the systemd unit", 2*need, 2*need, 2*need)
	case l.Soft < need:
		f.Status, f.Needed = Warning, fmt.Sprintf("%d for %s, which may not raise its own", need, who)
		f.Fix = fmt.Sprintf("ulimit -n %d   # before starting it", min(2*need, l.Hard))
	case l.Hard > sensibleOpenFiles:
		f.Status = Note
		f.Needed = fmt.Sprintf("below %d: DeepSeek's client library makes a table as long as that limit, and fails or takes gigabytes. kv3fs's does not", sensibleOpenFiles)
		f.Fix = "ulimit -Hn 1048576   # or docker run --ulimit nofile=1048576:1048576"
	}
	return f
}

func judgeLocked(l host.Limit) Finding {
	f := Finding{ID: "limit.memlock", Found: lockedText(l.Soft) + " of locked memory"}
	if l.Soft != host.Unlimited {
		f.Status = Note
		f.Needed = "unlimited, where an engine registers its buffers with RDMA cards; kv3fs locks none"
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

// checkDaemonLimits is about how many rings and iovs the daemon can hold: half
// of its descriptors or of its mappings, and for one user other than root a
// quarter of that (docs/compatibility.md).
func checkDaemonLimits(h host.Host, d *wire.Daemon, registrations int64, forWhat string) []Finding {
	const id = "daemon.limits"
	pid := strconv.Itoa(d.PID)
	if !isDaemon(h, d) {
		return []Finding{{ID: id, Status: Note, Found: "its process " + pid + " cannot be seen from here, as from another container",
			Needed: "nothing; its limits are not checked"}}
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
	room := min(files, maps) / 2
	f := Finding{ID: id, Found: fmt.Sprintf("room for %d rings and buffers (%s open files, vm.max_map_count %d)", room, limitText(files), maps)}
	need := max(registrations, 1024)
	switch {
	case room >= 4*need: // a user other than root may have a quarter
		if registrations > 0 {
			f.Found += fmt.Sprintf("; %s wants %d", forWhat, registrations)
		}
		return []Finding{f}
	case room < registrations:
		f.Status, f.Needed = Failure, fmt.Sprintf("%d for %s", registrations, forWhat)
	default:
		f.Status, f.Needed = Warning, fmt.Sprintf("%d, so that every user has enough: one other than root gets a quarter", 4*need)
	}
	f.Fix = fmt.Sprintf("LimitNOFILE=%d in kv3fs's systemd unit, or ulimit -n before starting it", 16*need)
	if maps < files {
		f.Fix = fmt.Sprintf("sysctl -w vm.max_map_count=%d", 16*need)
	}
	return []Finding{f}
}

// isDaemon says whether the number that a daemon gives for itself is its number
// here, too: it may be in another PID namespace.
func isDaemon(h host.Host, d *wire.Daemon) bool {
	args, err := h.Args(d.PID)
	return err == nil && servesMount(args)
}
