package pagesbench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// One answer in checkEvery is checked to the last page.
	checkEvery = 256
	// preparedBodies is how many bodies of each kind a client has.
	preparedBodies = 32
	// answerLimit is how long an answer may take; the aims are a thousandth of it.
	answerLimit = 30 * time.Second
)

// Keys are numbers to the client. The service knows those of the population from the
// start, and never learns of absent ones. Each client counts its own keys up from a start
// of its own.
const (
	absentKeys = 1 << 40
	clientKeys = 1 << 44 // times the number of the client
)

// query is a prepared request with what its answer must contain.
type query struct {
	request []byte
	pages   []int64 // of each key; absent ones are negative
	known   int     // how many keys are not absent
}

// client is one connection with its traffic.
type client struct {
	d     dialect
	to    target
	batch int
	conn  *conn
	rng   *rand.Rand

	exists, locate []query
	next           uint64 // the next unused key
	requests       int
	sinceCheck     int

	allocation, confirmed []byte // bodies, reused
	pages                 []int64
}

// newClient connects the number-th client of a service. known has the pages of the
// population.
func newClient(d dialect, to target, number, batch int, known []int64) (*client, error) {
	c, err := dial(to.address, answerLimit)
	if err != nil {
		return nil, err
	}
	cl := &client{
		d: d, to: to, batch: batch, conn: c, next: clientKeys * uint64(number+1),
		rng: rand.New(rand.NewPCG(2, uint64(number))),
	}
	if len(known) > 0 {
		for range preparedBodies {
			cl.exists = append(cl.exists, cl.query(d.exists, known))
			cl.locate = append(cl.locate, cl.query(d.locate, known))
		}
	}
	return cl, nil
}

// query prepares a query for a batch as a scheduler makes it: the first three quarters of
// the keys exist, the others do not.
func (c *client) query(r route, known []int64) query {
	var keys []uint64
	var q query
	for i := range c.batch {
		if i < (c.batch*3+3)/4 {
			n := c.rng.Uint64N(uint64(len(known)))
			keys, q.pages = append(keys, n), append(q.pages, known[n])
			q.known++
		} else {
			keys, q.pages = append(keys, absentKeys+c.rng.Uint64N(absentKeys)), append(q.pages, -1)
		}
	}
	q.request = seal(c.d.appendKeys(newBody(nil), r, keys), c.to, r.path)
	return q
}

// do sends a request and checks the status.
func (c *client) do(request []byte, status int) ([]byte, error) {
	got, body, err := c.conn.do(request)
	if err != nil {
		return nil, err
	}
	c.requests++
	if got != status {
		return nil, fmt.Errorf("status %d instead of %d: %.200s", got, status, body)
	}
	return body, nil
}

// due reports whether this answer is one to be checked as a whole.
func (c *client) due() bool {
	c.sinceCheck++
	if c.sinceCheck < checkEvery {
		return false
	}
	c.sinceCheck = 0
	return true
}

// count counts each true in an answer to exists, or each null in an answer to locate. It
// counts a letter that occurs nowhere else in the answer, because counting a byte is many
// times faster than counting a word.
func count(answer []byte) int { return bytes.Count(answer, []byte{'u'}) }

func (c *client) askExists() error {
	q := &c.exists[c.rng.IntN(len(c.exists))]
	answer, err := c.do(q.request, 200)
	if err != nil {
		return fmt.Errorf("exists: %w", err)
	}
	if n := count(answer); n != q.known {
		return fmt.Errorf("exists: %d keys of %d exist", n, q.known)
	}
	if !c.due() {
		return nil
	}
	var there []bool
	if err := field(answer, c.d.existing, &there); err != nil {
		return err
	}
	if !slices.EqualFunc(there, q.pages, func(is bool, page int64) bool { return is == (page >= 0) }) {
		return fmt.Errorf("exists: the wrong keys exist")
	}
	return nil
}

func (c *client) askLocate() error {
	q := &c.locate[c.rng.IntN(len(c.locate))]
	answer, err := c.do(q.request, 200)
	if err != nil {
		return fmt.Errorf("locate: %w", err)
	}
	if n := count(answer); n != c.batch-q.known {
		return fmt.Errorf("locate: %d keys of %d have no page", n, c.batch-q.known)
	}
	if !c.due() {
		return nil
	}
	var pages []*int64
	if err := field(answer, c.d.located, &pages); err != nil {
		return err
	}
	if !slices.EqualFunc(pages, q.pages, func(got *int64, want int64) bool {
		return got == nil && want < 0 || got != nil && *got == want
	}) {
		return fmt.Errorf("locate: a page is not the one that was confirmed")
	}
	return nil
}

// allocateAndConfirm stores a batch of new keys.
func (c *client) allocateAndConfirm() error {
	first := c.next
	c.next += uint64(c.batch)
	_, err := c.store(first)
	return err
}

// store stores the batch of keys from first on and returns their pages, which are valid
// until the next call.
func (c *client) store(first uint64) ([]int64, error) {
	c.allocation = c.d.appendAllocation(newBody(c.allocation), first, c.batch)
	answer, err := c.do(seal(c.allocation, c.to, c.d.allocate.path), 200)
	if err != nil {
		return nil, fmt.Errorf("allocate: %w", err)
	}
	if c.pages, err = c.d.pagesOf(answer, c.pages); err != nil {
		return nil, fmt.Errorf("allocate: %w", err)
	}
	check := c.due()
	if check {
		if err := c.d.checkAllocated(answer, first, c.pages); err != nil {
			return nil, fmt.Errorf("allocate: %w", err)
		}
	}
	if len(c.pages) != c.batch {
		return nil, fmt.Errorf("allocate: %d pages for %d keys", len(c.pages), c.batch)
	}
	c.confirmed = c.d.appendConfirmation(newBody(c.confirmed), first, c.pages)
	if _, err := c.do(seal(c.confirmed, c.to, c.d.confirm.path), 204); err != nil {
		return nil, fmt.Errorf("confirm: %w", err)
	}
	if check {
		return c.pages, c.find(first)
	}
	return c.pages, nil
}

// find checks that the batch of keys from first on exists.
func (c *client) find(first uint64) error {
	keys := make([]uint64, c.batch)
	for i := range keys {
		keys[i] = first + uint64(i)
	}
	answer, err := c.do(seal(c.d.appendKeys(newBody(nil), c.d.exists, keys), c.to, c.d.exists.path), 200)
	if err != nil {
		return fmt.Errorf("find: %w", err)
	}
	if n := count(answer); n != c.batch {
		return fmt.Errorf("find: %d keys of %d that were confirmed exist", n, c.batch)
	}
	return nil
}

// mixed is one operation of traffic like vLLM's: the scheduler queries more often than
// workers load, and workers load more often than they save.
func (c *client) mixed() error {
	switch n := c.rng.IntN(10); {
	case n < 7:
		return c.askExists()
	case n < 9:
		return c.askLocate()
	default:
		return c.allocateAndConfirm()
	}
}

// initialize makes rank 0 known.
func (c *client) initialize(pages int64) error {
	body := fmt.Appendf(newBody(nil), "%s%d%s", c.d.initialize.before, pages, c.d.initialize.after)
	status, answer, err := c.conn.do(seal(body, c.to, c.d.initialize.path))
	if err == nil && status != 200 && status != 204 {
		err = fmt.Errorf("status %d: %.200s", status, answer)
	}
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	return nil
}

// clear empties the service.
func (c *client) clear() error {
	body := append(newBody(nil), c.d.clear.before+c.d.clear.after...)
	if _, err := c.do(seal(body, c.to, c.d.clear.path), 204); err != nil {
		return fmt.Errorf("clear: %w", err)
	}
	return nil
}
