package ringserver

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// Process is a client process with the iovs and rings that it has as one user.
type Process struct {
	PID  int    // 0: the daemon cannot see it; then all such processes of a user are one
	Name string // of its command, as valid UTF-8 without control characters; "": unknown
	UID  uint32

	Registrations []Held // in the order in which they were made
	Iovs, Rings   int
	IovBytes      int64 // of all iovs
	RingBytes     int64 // of all rings
}

// Held is one registration of a process.
type Held struct {
	Name, Target string
	Bytes        int64
	Ring         bool

	// Of a ring:
	Write    bool
	Entries  int // requests that it has room for
	Depth    int
	Priority wire.Priority
}

// Processes returns the processes that have registrations, those with the most bytes first. It may be called at any time.
func (s *Server) Processes() []Process {
	type key struct {
		owner *owner
		uid   uint32
	}
	at := map[key]int{}
	var all []Process
	for _, e := range s.table.all() {
		k := key{e.owner, e.UID}
		i, known := at[k]
		if !known {
			i = len(all)
			at[k] = i
			p := Process{UID: e.UID}
			if e.owner != nil {
				p.PID, p.Name = e.owner.tgid, e.owner.name
			}
			all = append(all, p)
		}
		all[i].add(e)
	}
	slices.SortStableFunc(all, func(a, b Process) int { return cmp.Compare(b.IovBytes+b.RingBytes, a.IovBytes+a.RingBytes) })
	return all
}

func (p *Process) add(e *entry) {
	h := Held{Name: e.Name, Target: e.Target, Bytes: e.bytes}
	if e.ring != nil {
		h.Ring, h.Write, h.Depth, h.Priority = true, e.link.Write, int(e.link.IODepth), e.link.Priority
		h.Entries = e.ring.layout.Entries()
		p.Rings++
		p.RingBytes += h.Bytes
	} else {
		p.Iovs++
		p.IovBytes += h.Bytes
	}
	p.Registrations = append(p.Registrations, h)
}

// commandOf returns the name of a process's command, which the process chooses.
func commandOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	printable := func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}
	return strings.Map(printable, strings.ToValidUTF8(strings.TrimSuffix(string(b), "\n"), "?"))
}
