package pagehistory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"
)

// Protocol is whose requests the clients send.
type Protocol string

const (
	VLLM   Protocol = "vllm"
	SGLang Protocol = "sglang"
)

// Host is a host as its clients see it.
type Host struct {
	URL  string   // of its page service
	File *os.File // the page file, as this host has it; pages of 4 KiB
}

// Load is what clients do.
type Load struct {
	Hosts    []Host
	Protocol Protocol
	Clients  int // of each host
	Keys     int
	NumPages int
	// Lease and Reserve are those of the service.
	Lease, Reserve time.Duration
	// Deletes has keys deleted, where the protocol can.
	Deletes bool
}

// Prepare makes the rank known.
func (l Load) Prepare(ctx context.Context) error {
	return l.engine(l.Hosts[0], &http.Client{Timeout: answerLimit}).initialize(ctx, l.NumPages)
}

func (l Load) engine(h Host, client *http.Client) engine {
	if l.Protocol == SGLang {
		return sglang{caller{h.URL, client}}
	}
	return vllm{caller{h.URL, client}}
}

// Run runs the clients of a load until ctx ends, and records what they do.
func (h *History) Run(ctx context.Context, l Load, seed uint64) {
	var wg sync.WaitGroup
	for i, host := range l.Hosts {
		transport := &http.Transport{MaxIdleConnsPerHost: l.Clients}
		for n := range l.Clients {
			c := &client{
				Load: l, history: h, id: i*l.Clients + n, file: host.File,
				engine: l.engine(host, &http.Client{Timeout: answerLimit, Transport: transport}),
				rng:    rand.New(rand.NewPCG(seed, uint64(i*l.Clients+n))),
			}
			wg.Go(func() { c.run(ctx) })
		}
		defer transport.CloseIdleConnections()
	}
	wg.Wait()
}

// client is one of them. It does one thing at a time.
type client struct {
	Load
	history *History
	id      int
	file    *os.File
	engine  engine
	rng     *rand.Rand
}

func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		key := fmt.Sprintf("key-%04d", c.rng.IntN(c.Keys))
		switch n := c.rng.IntN(20); {
		case n < 9:
			c.save(ctx, key)
		case n < 19 || !c.Deletes:
			c.load(ctx, key)
		default:
			c.remove(ctx, key)
		}
		if c.rng.IntN(50) == 0 {
			c.pause(ctx, 50*time.Millisecond)
		}
	}
}

// pause lets a random time pass.
func (c *client) pause(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(c.rng.Int64N(int64(most)))):
	}
}

// answered returns when an answer came, or that none did, and lets a client whose host is
// in trouble wait a little.
func (c *client) answered(ctx context.Context, err error) time.Duration {
	if err == nil {
		return c.history.now()
	}
	c.history.count(func(n *Counts) { n.Unanswered++ })
	c.pause(ctx, 100*time.Millisecond)
	return never
}

// save stores a key as an engine does. Some clients die before they confirm, some give the
// page up, and some are slow.
func (c *client) save(ctx context.Context, key string) {
	sent := c.history.now()
	page, present, err := c.engine.reserve(ctx, key)
	answered := c.answered(ctx, err)
	if err != nil || present || page == none {
		return
	}
	mine := span{page: page, writes: true, from: answered, to: sent + c.Reserve, key: key, client: c.id}
	if c.rng.IntN(20) == 0 {
		c.pause(ctx, c.Reserve)
	}
	bytes := make([]byte, pageBytes)
	fill(bytes, key)
	if c.history.now() < mine.to {
		if _, err := c.file.WriteAt(bytes, page*pageBytes); err != nil {
			c.history.fail(err)
		}
	}
	if c.history.now() >= mine.to || c.rng.IntN(20) == 0 { // too late, or dead
		c.history.count(func(n *Counts) { n.Abandoned++ })
		c.history.addSpan(mine)
		return
	}
	reservedUntil := mine.to
	mine.to = c.history.now()
	c.history.addSpan(mine)
	if c.rng.IntN(20) == 0 {
		_ = c.engine.release(ctx, page) // whether it comes or not, the page is not used any more
		return
	}
	err = c.engine.confirm(ctx, key, page)
	q := question{verb: confirm, key: key, page: page, client: c.id, sent: mine.to, answered: c.answered(ctx, err)}
	q.late = q.answered > reservedUntil
	c.history.addQuestion(q)
}

// load finds a key and reads its page within the lease, sometimes at its end.
func (c *client) load(ctx context.Context, key string) {
	sent := c.history.now()
	page, err := c.engine.locate(ctx, key)
	answered := c.answered(ctx, err)
	if err != nil {
		return
	}
	c.history.addQuestion(question{verb: locate, key: key, page: page, client: c.id, sent: sent, answered: answered})
	until := sent + c.Lease
	if page == none || answered >= until {
		return
	}
	c.history.addSpan(span{page: page, from: answered, to: until, key: key, client: c.id})
	if c.rng.IntN(10) == 0 {
		c.pause(ctx, until-answered)
	}
	bytes := make([]byte, pageBytes)
	if _, err := c.file.ReadAt(bytes, page*pageBytes); err != nil {
		c.history.fail(err)
		return
	}
	if c.history.now() < until { // else another may have written it meanwhile
		if err := verify(bytes, key); err != nil {
			c.history.fail(fmt.Errorf("client %d, page %d, located at %v: %w", c.id, page, answered, err))
		}
	}
}

func (c *client) remove(ctx context.Context, key string) {
	sent := c.history.now()
	if ok, err := c.engine.remove(ctx, key); ok {
		c.history.addQuestion(question{verb: remove, key: key, page: none, client: c.id, sent: sent, answered: c.answered(ctx, err)})
	}
}
