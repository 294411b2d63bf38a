// Package pageservice says what the page service keeps: which page of an engine's big
// preallocated file holds which key. vLLM and SGLang ask it over HTTP
// (docs/spec/clients.md, chapters 6 and 7); package door answers both, the state is
// behind Book.
//
// A page belongs to exactly one of: nobody (free), a reservation (handed to one
// writer for one key), a key (confirmed), or the quarantine (given up, and perhaps
// still being read or written by somebody who was told of it earlier). It is given
// to a writer only when it is free, or when the key that has it may be evicted.
package pageservice

import (
	"context"
	"errors"
	"time"
)

// None is the page of a key that has none.
const None int64 = -1

// Space names one set of keys. Spaces share nothing: equal keys of two models in
// two spaces never meet.
type Space struct {
	// Namespace comes from the URL prefix or the listener; "" is the default one.
	Namespace string `json:"namespace"`
	// Set is which keys of the namespace: "vllm" for all ranks of vLLM, or
	// "sglang/POOL/RANK", since each rank and pool of SGLang is on its own.
	Set string `json:"set"`
}

// Book is the state that all engines on the same files agree on.
//
// All methods may be called at once, from any goroutine; each is atomic, and
// answers in the order of its arguments. Strings and slices that are given remain
// the caller's: a Book copies what it keeps. A method that returns an error other
// than ErrUnknownRank has changed nothing that a client could notice; but when the
// context ends while the disk is at work, the change may still be made.
//
// What holds at all times, across kill -9 and power loss:
//   - no page of a rank has two owners;
//   - a page whose location was given out is not given to a writer before the lease
//     and then the quarantine have ended;
//   - a page given up by its writer (released, expired, deleted) is not given to
//     another before the quarantine has ended;
//   - a key whose confirmation was answered is found until it is evicted, deleted,
//     cleared, or its rank comes back with another number of pages;
//   - a key is visible only while every rank of its space has confirmed it.
type Book interface {
	// Initialize makes a rank known, or finds it again. A rank that comes back with
	// another number of pages is another model or file: its old pages are dropped
	// (RankState.Dropped says how many), and ranks of the space that have yet another
	// number do not count for completeness until they are heard of. Pages that
	// somebody was told of lately are not given out before he is done with them.
	Initialize(ctx context.Context, s Space, rank int, o RankOptions) (RankState, error)

	// Forget drops all pages of a rank, which is unknown afterwards, does not count for
	// completeness, and has to be initialised to come back. Then it gets no pages before
	// those who were told of its old ones are done with them.
	Forget(ctx context.Context, s Space, rank int) error

	// Reserve finds a page of the rank for each key, to be written and then
	// confirmed. A key that has a page on this rank already keeps it (Present);
	// equal keys of one batch get one page. Where free pages are missing, keys are
	// evicted; where even that does not suffice, a key gets None. With allOrNothing
	// either every key that needs a page gets one or none does.
	//
	// A reservation ends by itself after Options.Reserve. Pages of Present keys are
	// protected as long, for a client may write them again.
	Reserve(ctx context.Context, s Space, rank int, keys []string, allOrNothing bool) ([]Grant, error)

	// Confirm makes written pages belong to their keys, durably: when it returns,
	// they survive power loss. Then it gives up the pages in release. What is not
	// the caller's to confirm or to release (a page that was never reserved for
	// this key, or whose reservation has ended and that somebody else has now, or
	// that belongs to a key) is left as it is and counted in Confirmed.Ignored.
	//
	// A release names no key, and may come late from a former writer of the page: so
	// the page rests as if its reservation had lasted, and its present writer may
	// still confirm it.
	Confirm(ctx context.Context, s Space, rank int, written []Placed, release []int64) (Confirmed, error)

	// Exists tells which keys every rank has confirmed, and holds those for a short
	// time (Options.Hold), so that they are still there when they are located.
	Exists(ctx context.Context, s Space, keys []string) ([]bool, error)

	// Locate gives the page of each visible key on a rank, or None, and leases it.
	Locate(ctx context.Context, s Space, rank int, keys []string) ([]int64, error)

	// Delete forgets keys, on all ranks, and tells how many there were.
	Delete(ctx context.Context, s Space, keys []string) (int, error)

	// Clear forgets all keys and ends all reservations. Ranks stay known.
	Clear(ctx context.Context, s Space) error

	// Evict forgets up to n keys as if their pages were needed, leases respected,
	// and tells how many it found.
	Evict(ctx context.Context, s Space, n int) (int, error)

	// Stat describes all spaces, sorted.
	Stat(ctx context.Context) ([]SpaceState, error)

	// List gives up to limit keys of a space after a key, in the order of keys.
	List(ctx context.Context, s Space, after string, limit int) ([]Entry, error)

	// Close ends the book; the state is kept. Calls after it answer ErrClosed.
	Close() error
}

// RankOptions describes a rank.
type RankOptions struct {
	NumPages int64 // pages of the rank's file, 1 to MaxPages
}

// VLLM is the set of vLLM's keys in every namespace: the one of several ranks.
const VLLM = "vllm"

// Bounds of what is initialised, which stays until it is forgotten.
const (
	MaxSpaces = 4096
	MaxRanks  = 4096 // of a space
)

// MaxPages bounds the pages of one rank.
const MaxPages = 1 << 31

// RankState is what Initialize found or made.
type RankState struct {
	Known   bool  // it was known with the same number of pages
	Dropped int64 // pages dropped because it came back with another number
}

// Grant is the answer to one key of Reserve.
type Grant struct {
	Page    int64 // or None
	Present bool  // the rank has confirmed this key before
}

// Placed is a key and the page that was written with it.
type Placed struct {
	Key  string
	Page int64
}

// Confirmed counts what Confirm did.
type Confirmed struct {
	Keys     int // belong to their pages now, or did before
	Released int // pages given up
	Ignored  int // neither: not the caller's
}

// SpaceState describes a space.
type SpaceState struct {
	Space    Space       `json:"space"`
	World    int         `json:"world"`    // ranks that make a key complete, now
	Keys     int64       `json:"keys"`     // all
	Complete int64       `json:"complete"` // visible ones
	Leased   int64       `json:"leased"`   // that may not be evicted now
	Ranks    []RankPages `json:"ranks"`
	Counters Counters    `json:"counters"`
}

// RankPages says where the pages of a rank are; they add up to NumPages.
type RankPages struct {
	Rank     int   `json:"rank"`
	NumPages int64 `json:"num_pages"`
	Free     int64 `json:"free"`
	Reserved int64 `json:"reserved"`
	Keyed    int64 `json:"keyed"`
	Resting  int64 `json:"resting"` // in quarantine
}

// Counters count events of a space since the process started.
type Counters struct {
	Hits         int64 `json:"hits"`   // keys located
	Misses       int64 `json:"misses"` // keys asked for and not there
	Reserved     int64 `json:"reserved"`
	Refused      int64 `json:"refused"` // keys that got no page
	Confirmed    int64 `json:"confirmed"`
	Ignored      int64 `json:"ignored"` // confirmations and releases that were not the caller's
	Evicted      int64 `json:"evicted"` // keys
	Expired      int64 `json:"expired"` // reservations
	Released     int64 `json:"released"`
	DroppedPages int64 `json:"dropped_pages"`
}

// Entry is a key as List shows it.
type Entry struct {
	Key      string        `json:"key"`
	Pages    map[int]int64 `json:"pages"` // by rank
	Complete bool          `json:"complete"`
	Idle     time.Duration `json:"idle_ns"`  // since it was last used
	Lease    time.Duration `json:"lease_ns"` // how long it may not be evicted
}

// Options of a Book. The zero value of each means its default.
type Options struct {
	// World is how many ranks make a key of vLLM complete: 0 to World-1, each of them,
	// whatever other ranks are known. 0: all that are known.
	World int

	Lease      time.Duration // a location given out is valid as long; 30 s
	Hold       time.Duration // a key said to exist is kept as long; 5 s
	Reserve    time.Duration // a reservation lasts as long; 60 s
	Quarantine time.Duration // a page given up rests as long; 10 s
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&o.Lease, 30 * time.Second}, {&o.Hold, 5 * time.Second}, {&o.Reserve, 60 * time.Second}, {&o.Quarantine, 10 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.def
		}
	}
	return o
}

// Errors of a Book. Others are of the context.
var (
	// ErrUnknownRank: the rank was never initialised in this space.
	ErrUnknownRank = errors.New("rank is not initialised")
	// ErrInvalid: an argument is out of its range; the text says which.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnavailable: the change could not be made durable (a full or broken disk)
	// and was not made. Reading goes on.
	ErrUnavailable = errors.New("the page store cannot write")
	// ErrClosed: the book was closed.
	ErrClosed = errors.New("the page store is closed")
)
