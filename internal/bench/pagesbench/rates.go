package pagesbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// testCase is one row of the table of rates.
type testCase struct {
	name string
	// fills: the reference would be full after a few runs, so it is emptied before each.
	// kv3fs evicts.
	fills bool
	do    func(*client) error
}

func testCases() []testCase {
	return []testCase{
		{"exists", false, (*client).askExists},
		{"locate", false, (*client).askLocate},
		{"allocate+confirm", true, (*client).allocateAndConfirm},
		{"mix", false, (*client).mixed},
	}
}

// clientGroup holds the clients of one contender, with its population.
type clientGroup struct {
	service *service
	pages   int
	clients []*client
}

// newClientGroup initialises rank 0, stores keys on a sixteenth of its pages as the population,
// and connects n clients.
func newClientGroup(ctx context.Context, d dialect, s *service, n, batch, pages int) (c *clientGroup, err error) {
	c = &clientGroup{service: s, pages: pages}
	d.salt = rand.Uint64()
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: %s: %w", s.name, err), c.close())
		}
	}()
	first, err := newClient(d, s.to, n, batch, nil)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, first.conn.close()) }()
	if err := first.conn.until(time.Now().Add(populateLimit)); err != nil {
		return c, err
	}
	if err := first.initialize(int64(pages)); err != nil {
		return c, err
	}
	var known []int64
	for len(known) < pages/16 && ctx.Err() == nil {
		stored, err := first.store(uint64(len(known)))
		if err != nil {
			return c, err
		}
		known = append(known, stored...)
	}
	for i := range n {
		cl, err := newClient(d, s.to, i, batch, known)
		if err != nil {
			return c, err
		}
		c.clients = append(c.clients, cl)
	}
	return c, ctx.Err()
}

// populateLimit bounds storing the population.
const populateLimit = 2 * time.Minute

func (c *clientGroup) close() (err error) {
	for _, cl := range c.clients {
		err = errors.Join(err, cl.conn.close())
	}
	return err
}

// empty forgets all keys, with the population, and initialises the rank again.
func (c *clientGroup) empty() error {
	cl := c.clients[0]
	if err := cl.conn.until(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	return errors.Join(cl.clear(), cl.initialize(int64(c.pages)))
}

// outcome is the result of a run.
type outcome struct {
	perSecond    float64 // requests
	cpuMicros    float64 // of the service, for each request
	clientMicros float64 // of the clients
}

// run lets all clients do the same operation for a while.
func (c *clientGroup) run(ctx context.Context, d time.Duration, do func(*client) error) (outcome, error) {
	ctx, cancel := context.WithCancel(ctx) // the first error ends the run
	defer cancel()
	used, err := c.service.cpuTime()
	if err != nil {
		return outcome{}, err
	}
	clientsUsed, err := clientsCPUTime()
	if err != nil {
		return outcome{}, err
	}
	errs := make([]error, len(c.clients))
	var wg sync.WaitGroup
	began := time.Now()
	for i, cl := range c.clients {
		cl.requests = 0
		wg.Go(func() {
			errs[i] = cl.conn.until(began.Add(d + answerLimit))
			for errs[i] == nil && time.Since(began) < d && ctx.Err() == nil {
				errs[i] = do(cl)
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return outcome{}, fmt.Errorf("%s: %w", c.service.name, err)
	}
	if err := ctx.Err(); err != nil {
		return outcome{}, err
	}
	usedNow, err := c.service.cpuTime()
	if err != nil {
		return outcome{}, err
	}
	clientsUsedNow, err := clientsCPUTime()
	if err != nil {
		return outcome{}, err
	}
	total := 0
	for _, cl := range c.clients {
		total += cl.requests
	}
	return outcome{
		perSecond:    float64(total) / elapsed.Seconds(),
		cpuMicros:    (usedNow - used).Seconds() * 1e6 / float64(total),
		clientMicros: (clientsUsedNow - clientsUsed).Seconds() * 1e6 / float64(total),
	}, nil
}
