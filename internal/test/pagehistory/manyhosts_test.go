package pagehistory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// recovery bounds how long machines take to serve again when nothing is wrong any more. Much else may run on this one.
const recovery = 4 * time.Minute

// TestManyHosts has clients on three machines, whose page services, etcd members and cables
// fail at random. KV3FS_HISTORIES is how many histories it records; each takes some 30 s, with
// -short some 20 s.
func TestManyHosts(t *testing.T) {
	howLong := 15 * time.Second
	if testing.Short() {
		howLong = 8 * time.Second
	}
	many(t, historiesWanted(t), func(m *machines, _ Load, h *History, rng *rand.Rand) {
		m.awaitCounts(h, "clients store and find", func(c Counts) bool { return c.Saved > 0 && c.Found > 0 })
		m.torment(m.t, rng, howLong)
	})
}

// TestFullEtcd has the same clients while etcd is out of space, as happens where others fill it: what is stored is found, nothing is
// stored, a page service is lost meanwhile; and all goes on when there is space again. One in ten histories is of this.
func TestFullEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: one history is of TestManyHosts")
	}
	many(t, (historiesWanted(t)+9)/10, func(m *machines, l Load, h *History, rng *rand.Rand) {
		m.awaitCounts(h, "clients store", func(c Counts) bool { return c.Saved > 100 && c.Found > 100 })
		m.etcd.Fill()
		full := h.Counts()
		m.awaitCounts(h, "reading goes on", func(c Counts) bool { return c.Found > full.Found+100 })
		for i, host := range l.Hosts { // a key that all have may be "saved" again
			if page, _, err := l.engine(host, http.DefaultClient).reserve(m.t.Context(), "a new key"); err == nil && page != none {
				m.t.Errorf("machine %d gives page %d to a new key though etcd is full", i, page)
			}
		}
		i := rng.IntN(len(m.all))
		m.t.Logf("machine %d: its page service is killed", i)
		m.all[i].child.Kill()
		time.Sleep(time.Duration(rng.Int64N(int64(8 * time.Second)))) // up to when another may lead, or nobody
		m.etcd.Drain()
		if err := m.all[i].start(); err != nil {
			m.t.Error(err)
		}
		empty := h.Counts()
		m.awaitCounts(h, "clients store again", func(c Counts) bool { return c.Saved > empty.Saved+20 })
	})
}

// historiesWanted returns how many histories are to be recorded, or skips the test.
func historiesWanted(t *testing.T) int {
	text := os.Getenv("KV3FS_HISTORIES")
	if text == "" {
		t.Skip("make histories runs it, and make test one history, with KV3FS_HISTORIES")
	}
	histories, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KV3FS_HISTORIES: %v", err)
	}
	return histories
}

// firstSeed returns a random seed; with -short, as in make test, always the same one: a rare defect is for make histories to find, and not for a run
// that is about something else. It is of clients of vLLM, with pages for all keys.
func firstSeed(t *testing.T) uint64 {
	const ofShort = 1700
	if testing.Short() {
		return seed.Or(t, ofShort)
	}
	return seed.New(t)
}

// clientsOfHost is how many clients each machine has.
const clientsOfHost = 4

// many records histories of three machines in trouble.
func many(t *testing.T, histories int, trouble func(*machines, Load, *History, *rand.Rand)) {
	if !inNamespace(t) {
		return
	}
	first := firstSeed(t)
	for i := range histories {
		n := first + uint64(i) // says all: KV3FS_SEED=n repeats this history alone
		l := Load{Clients: clientsOfHost, Keys: 100, Lease: 2 * time.Second, Reserve: 2 * time.Second, Deletes: true}
		// Every second history has more pages than keys, so that no key may be lost.
		l.Protocol = []Protocol{VLLM, SGLang}[n/2%2]
		l.NumPages = []int{4000, 60}[n%2]
		t.Run(fmt.Sprintf("%d, seed %d, %s, %d pages", i, n, l.Protocol, l.NumPages), func(t *testing.T) { manyHosts(t, l, n, trouble) })
		if t.Failed() {
			return // what follows would be of the same cause
		}
	}
}

func manyHosts(t *testing.T, l Load, n uint64, trouble func(*machines, Load, *History, *rand.Rand)) {
	m := startMachines(t, &l)
	m.await(l)
	h := record(t, l, n, func(h *History) {
		trouble(m, l, h, rand.New(rand.NewPCG(n, 0)))
		m.await(l)
	})
	t.Logf("%+v", h.Counts())
	for _, err := range h.Check(Eviction(l.NumPages < 2*l.Keys)) {
		t.Error(err)
	}
}

// await waits until every machine answers, and makes the rank known.
func (m *machines) await(l Load) {
	m.t.Helper()
	client := &http.Client{Timeout: answerLimit}
	defer client.CloseIdleConnections()
	for i, host := range l.Hosts {
		for deadline := time.Now().Add(recovery); ; time.Sleep(50 * time.Millisecond) {
			ctx, cancel := context.WithDeadline(m.t.Context(), deadline)
			err := l.engine(host, client).initialize(ctx, l.NumPages)
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				m.t.Fatalf("machine %d does not answer: %v", i, err)
			}
		}
	}
}

// awaitCounts waits until a history that is being recorded shows something.
func (m *machines) awaitCounts(h *History, what string, holds func(Counts) bool) {
	m.t.Helper()
	for deadline := time.Now().Add(2 * recovery); !holds(h.Counts()); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("it does not come to that %s: %+v", what, h.Counts())
		}
	}
}
