package host

import (
	"strconv"
	"strings"
	"time"
)

// LateWrites says for how long a write may still reach the servers of a file system after it was sent: whoever sent it may have
// given it up, and the network may have been cut since.
type LateWrites struct {
	For     time.Duration
	Bounded bool   // else For is only what is assumed
	Cure    string // what makes it shorter, or bounded
}

const (
	// assumedLate is what is assumed where nothing bounds it: most outages are shorter.
	assumedLate = 5 * time.Minute
	// cephEviction is the default of CephFS' session_autoclose. Servers take nothing from a client that was evicted.
	cephEviction = 300 * time.Second
	// cephNotice is how long MDS, monitors and OSDs take to learn of an eviction, and the client to look at its requests.
	cephNotice = 15 * time.Second
	// glusterPing is the default of GlusterFS' network.ping-timeout.
	glusterPing = 42 * time.Second
	// mostLate keeps absurd options from overflows.
	mostLate = 24 * time.Hour
)

// LateWritesOf returns what holds for a mount of many hosts. volfile is what GlusterFS' client shows of its volume, or "".
func LateWritesOf(fs FileSystem, m Mount, volfile string) LateWrites {
	unbounded := LateWrites{For: assumedLate}
	switch {
	case fs.Reach == OneHost:
		return LateWrites{Bounded: true}
	case fs.Name == GlusterFS:
		ping := glusterPingTimeout(volfile)
		if ping == 0 {
			unbounded.Cure = "gluster volume set VOLUME network.ping-timeout 42"
			return unbounded
		}
		// A server is asked after one silence, and given up after a second one; then nothing is sent again.
		return LateWrites{For: min(2*ping, mostLate), Bounded: true, Cure: "a shorter network.ping-timeout"}
	case strings.HasPrefix(fs.Name, CephFS):
		if s, ok := m.number("osd_request_timeout"); ok && s > 0 {
			return LateWrites{For: min(seconds(s)+cephNotice, mostLate), Bounded: true}
		}
		// A client that reaches its MDS, but not an OSD, is never evicted.
		unbounded.For = cephEviction + cephNotice
		unbounded.Cure = "the kernel's client with osd_request_timeout=SECONDS"
		return unbounded
	case fs.Name == NFS:
		unbounded.Cure = "mount -o soft,timeo=100,retrans=2, on all hosts: then calls that get no answer end with EIO"
		timeo, ok := m.number("timeo")
		retrans, ok2 := m.number("retrans")
		if soft := m.HasOption("soft") || m.HasOption("softerr"); !soft || !ok || !ok2 || m.HasOption("proto=udp") {
			return unbounded
		}
		// Tenths of a second, each time one timeo more; at most mostLate, whatever the numbers are.
		tries := min(retrans+1, 1000)
		return LateWrites{For: min(min(seconds(timeo), mostLate)/10*time.Duration(tries*(tries+1)/2), mostLate), Bounded: true, Cure: "a shorter timeo"}
	}
	return unbounded
}

// number returns the value of an option NAME=NUMBER of a mount or its file system.
func (m Mount) number(name string) (int64, bool) {
	for _, list := range []string{m.Options, m.Super} {
		for o := range strings.SplitSeq(list, ",") {
			if text, ok := strings.CutPrefix(o, name+"="); ok {
				n, err := strconv.ParseInt(text, 10, 64)
				return n, err == nil && n >= 0
			}
		}
	}
	return 0, false
}

// seconds returns n seconds, or mostLate if that is less.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(mostLate/time.Second))) * time.Second
}

// glusterPingTimeout returns the longest network.ping-timeout of a volume's bricks, or 0 if one of them is never given up. Without a
// volume file it is the default.
func glusterPingTimeout(volfile string) time.Duration {
	var longest time.Duration
	client := false
	ping := glusterPing
	for line := range strings.Lines(volfile) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "volume":
			client, ping = false, glusterPing
		case f[0] == "type" && len(f) == 2:
			client = f[1] == "protocol/client"
		case f[0] == "option" && len(f) == 3 && f[1] == "ping-timeout":
			n, err := strconv.ParseInt(f[2], 10, 64)
			if err != nil || n < 0 {
				n = 0
			}
			ping = seconds(n)
		case f[0] == "end-volume" && client:
			if ping == 0 {
				return 0
			}
			longest = max(longest, ping)
		}
	}
	if longest == 0 {
		return glusterPing
	}
	return longest
}
