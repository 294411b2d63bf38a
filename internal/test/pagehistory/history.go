package pagehistory

import (
	"fmt"
	"sync"
	"time"
)

// History is what clients did and were told. Its methods may be called at once.
type History struct {
	begin time.Time

	mu     sync.Mutex
	spans  []span
	asked  []question
	wrong  []error
	counts Counts
}

// Counts say how much a history shows.
type Counts struct {
	Saved, Found, Missed, Unanswered, Abandoned int
}

// New returns an empty history.
func New() *History { return &History{begin: time.Now()} }

// now is the time by the clock of the history.
func (h *History) now() time.Duration { return time.Since(h.begin) }

// span is a time in which a client may touch the bytes of a page.
type span struct {
	page     int64
	writes   bool
	from, to time.Duration
	key      string
	client   int
}

func (s span) String() string {
	does := "reads"
	if s.writes {
		does = "writes"
	}
	return fmt.Sprintf("client %d %s page %d for %q from %v to %v", s.client, does, s.page, s.key, s.from, s.to)
}

// verb is what a client asks about a key.
type verb byte

const (
	confirm verb = iota + 1 // the key has this page
	locate                  // which page has the key
	remove                  // the key is forgotten
)

// never is the time of an answer that did not come.
const never = time.Duration(1<<63 - 1)

// question is a request about one key, and its answer.
type question struct {
	verb           verb
	key            string
	page           int64 // confirm: of the request; locate: of the answer, or none
	client         int
	sent, answered time.Duration
	late           bool // confirm: it may have been executed when the reservation had ended, and is ignored then
}

const none = -1

func (h *History) addSpan(s span) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spans = append(h.spans, s)
}

func (h *History) addQuestion(q question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, q)
	switch {
	case q.answered == never:
	case q.verb == confirm:
		h.counts.Saved++
	case q.verb == locate && q.page == none:
		h.counts.Missed++
	case q.verb == locate:
		h.counts.Found++
	}
}

// count changes the counts.
func (h *History) count(change func(*Counts)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.counts)
}

// fail records what is wrong by itself.
func (h *History) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, err)
}

// Counts returns how much the history shows by now.
func (h *History) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}
