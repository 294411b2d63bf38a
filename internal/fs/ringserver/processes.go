package ringserver

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

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

	Reads, Writes Amount // of the process as whichever user, since its first registration
}

// Amount is what rings have moved.
type Amount struct{ Requests, Bytes, Failed int64 }

// processTraffic counts what a process moves.
type processTraffic struct {
	pid           int
	reads, writes amount
}

type amount struct{ requests, bytes, failed atomic.Int64 }

func (p *processTraffic) of(write bool) *amount {
	if write {
		return &p.writes
	}
	return &p.reads
}

func (a *amount) read() Amount { return Amount{a.requests.Load(), a.bytes.Load(), a.failed.Load()} }

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
				p.Reads, p.Writes = e.owner.traffic.reads.read(), e.owner.traffic.writes.read()
			}
			all = append(all, p)
		}
		all[i].add(e)
	}
	slices.SortStableFunc(all, func(a, b Process) int { return cmp.Compare(b.IovBytes+b.RingBytes, a.IovBytes+a.RingBytes) })
	return all
}

func (a *Amount) add(b Amount) {
	a.Requests += b.Requests
	a.Bytes += b.Bytes
	a.Failed += b.Failed
}

func (p *Process) add(e *entry) {
	h := Held{Name: e.Name, Target: e.Target, Bytes: e.bytes}
	if e.ring != nil {
		h.Ring, h.Write, h.Depth, h.Priority = true, e.link.Write, int(e.link.IODepth), e.link.Priority
		h.Entries = e.ring.layout.Entries()
		if e.owner == nil { // each ring counts for itself
			p.Reads.add(e.ring.process.reads.read())
			p.Writes.add(e.ring.process.writes.read())
		}
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
