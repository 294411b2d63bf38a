// Package pageservice defines what the parts of the page service have in common: the
// names of spaces, keys and pages, the errors, and the log under the index.
//
// The page service records which page of an engine's preallocated file holds which
// key. vLLM and SGLang query it over HTTP (docs/spec/clients.md, chapters 6 and 7):
// package httpserver answers both, package index holds the state, and a Log, such as
// that of package journal, makes it durable.
//
// A page has exactly one owner: nobody (it is free), a reservation (one writer has it,
// for one key), a key (confirmed), or the quarantine (it was given up, and a client that
// learned of it earlier may still read or write it). A writer gets a page only when it
// is free, or when the key that owns it may be evicted.
package pageservice

import (
	"errors"
	"fmt"
	"time"
)

// None is the page of a key that has none.
const None int64 = -1

// Space names one set of keys. Spaces share nothing: equal keys of two models, in two
// spaces, are different keys.
type Space struct {
	// Namespace comes from the URL prefix or from the listener; "" is the default.
	Namespace string `json:"namespace"`
	// Set is "vllm" for all ranks of vLLM, or "sglang/POOL/RANK", because each rank
	// and pool of SGLang is independent.
	Set string `json:"set"`
}

// RankOptions describes a rank.
type RankOptions struct {
	NumPages int64 // pages of the rank's file, 1 to MaxPages
}

// VLLM is the set of vLLM's keys in each namespace. It is the only set with several
// ranks.
const VLLM = "vllm"

// Bounds of what clients can initialise; it stays until it is forgotten.
const (
	MaxSpaces = 4096
	MaxRanks  = 4096 // of a space
)

// MaxPages bounds the pages of one rank.
const MaxPages = 1 << 31

// RankState describes what Initialize found or created.
type RankState struct {
	Known   bool  // the rank was known with the same number of pages
	Dropped int64 // pages dropped because the rank came back with another number
}

// Grant is the answer to one key of Reserve.
type Grant struct {
	Page    int64 // or None
	Present bool  // the rank has already confirmed this key
}

// Placed is a key and the page into which its bytes were written.
type Placed struct {
	Key  string
	Page int64
}

// Confirmed counts the effects of Confirm.
type Confirmed struct {
	Keys     int // that own their page now, or already did
	Released int // pages given up
	Ignored  int // pages that are not the caller's
}

// SpaceState describes a space.
type SpaceState struct {
	Space    Space       `json:"space"`
	World    int         `json:"world"`    // ranks that a key needs, now, to be complete
	Keys     int64       `json:"keys"`     // all
	Complete int64       `json:"complete"` // visible ones
	Leased   int64       `json:"leased"`   // keys that may not be evicted now
	Ranks    []RankPages `json:"ranks"`
	Counters Counters    `json:"counters"`
}

// RankPages counts the pages of a rank by owner. The counts add up to NumPages.
type RankPages struct {
	Rank        int   `json:"rank"`
	NumPages    int64 `json:"num_pages"`
	Free        int64 `json:"free"`
	KeptFree    int64 `json:"kept_free"` // among the free ones: see Options.Free
	Reserved    int64 `json:"reserved"`
	Keyed       int64 `json:"keyed"`
	Quarantined int64 `json:"resting"`
}

// Counters count events of a space since the process started.
type Counters struct {
	Hits         int64 `json:"hits"`   // keys located
	Misses       int64 `json:"misses"` // keys queried and not found
	Reserved     int64 `json:"reserved"`
	Refused      int64 `json:"refused"` // keys that got no page
	Confirmed    int64 `json:"confirmed"`
	Ignored      int64 `json:"ignored"` // confirmations and releases that were not the caller's
	Evicted      int64 `json:"evicted"` // keys
	Expired      int64 `json:"expired"` // reservations
	Released     int64 `json:"released"`
	DroppedPages int64 `json:"dropped_pages"`
}

// Add adds other events.
func (c *Counters) Add(o Counters) {
	c.Hits += o.Hits
	c.Misses += o.Misses
	c.Reserved += o.Reserved
	c.Refused += o.Refused
	c.Confirmed += o.Confirmed
	c.Ignored += o.Ignored
	c.Evicted += o.Evicted
	c.Expired += o.Expired
	c.Released += o.Released
	c.DroppedPages += o.DroppedPages
}

// Entry is a key as List shows it.
type Entry struct {
	Key      string        `json:"key"`
	Pages    map[int]int64 `json:"pages"` // by rank
	Complete bool          `json:"complete"`
	Idle     time.Duration `json:"idle_ns"`  // since it was last used
	Lease    time.Duration `json:"lease_ns"` // how long it still may not be evicted
}

// Options of an index. The zero value of each field means its default.
type Options struct {
	// World is the number of ranks that a key of vLLM needs to be complete: ranks 0 to
	// World-1, whatever other ranks are known. 0 means all known ranks.
	World int

	Lease      time.Duration // how long a location stays valid for its reader; 30 s
	Hold       time.Duration // how long a key that was reported to exist is kept; 5 s
	Reserve    time.Duration // how long a reservation lasts; 60 s
	Quarantine time.Duration // how long a page that was given up is kept from others; 10 s

	// LateWrites is how much longer a page is kept from others that was handed out to be written, and given up: a
	// write of a host that was cut off may still reach the file for so long after its writer gave it up.
	LateWrites time.Duration

	// Free is the share of each rank's pages that is kept free, as far as keys can be evicted for it, and that a
	// restart finds free: it protects all keys for a while, and would have no page for a new one. The
	// pages are given out when there are no others. Rounded down, so small files keep none; 0 is none.
	Free float64

	// MemoryBytes bounds the memory of the index; 1 GiB. No namespace may take more
	// than it leaves for the others.
	MemoryBytes int64
}

// Promises are the times for which clients rely on what they were told, as in Options.
type Promises struct {
	Lease      time.Duration `json:"lease_ns,omitempty"`
	Reserve    time.Duration `json:"reserve_ns,omitempty"`
	Quarantine time.Duration `json:"quarantine_ns,omitempty"`
	LateWrites time.Duration `json:"late_writes_ns,omitempty"` // what they gave up rests for so much longer
}

// Promises returns what an index with these options promises.
func (o Options) Promises() Promises {
	return Promises{Lease: o.Lease, Reserve: o.Reserve, Quarantine: o.Quarantine, LateWrites: o.LateWrites}
}

// And returns the promises that keep both.
func (p Promises) And(q Promises) Promises {
	return Promises{max(p.Lease, q.Lease), max(p.Reserve, q.Reserve), max(p.Quarantine, q.Quarantine), max(p.LateWrites, q.LateWrites)}
}

// Keep reports whether whoever keeps p keeps q.
func (p Promises) Keep(q Promises) bool { return p.And(q) == p }

// DefaultMemoryBytes is the default of Options.MemoryBytes.
const DefaultMemoryBytes = 1 << 30

// WithDefaults returns o with defaults in place of zeros.
func (o Options) WithDefaults() Options {
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&o.Lease, 30 * time.Second}, {&o.Hold, 5 * time.Second}, {&o.Reserve, 60 * time.Second}, {&o.Quarantine, 10 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.def
		}
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = DefaultMemoryBytes
	}
	return o
}

// Errors of an index. Any other error is that of the context.
var (
	// ErrUnknownRank: the rank was never initialised in this space.
	ErrUnknownRank = errors.New("rank is not initialised")
	// ErrInvalid: an argument is out of range; the text names it.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnavailable: the change could not be made durable (the disk is full or
	// broken), and was not made. Queries still work.
	ErrUnavailable = errors.New("the page index cannot write")
	// ErrDemoted: another host leads the log now, or may. What was written before holds;
	// whether this change was made is for that host to say.
	ErrDemoted = fmt.Errorf("%w: another host leads its log now", ErrUnavailable)
	// ErrFull: there is no memory for another rank or namespace.
	ErrFull = errors.New("the page index is full")
	// ErrClosed: the index, or its log, was closed.
	ErrClosed = errors.New("the page index is closed")
	// ErrInUse: a client may still use a page that it was told of.
	ErrInUse = errors.New("pages are leased, reserved or in quarantine")
	// ErrCorrupt: the log is not what was written.
	ErrCorrupt = errors.New("the log is damaged")
)
