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

// recovery bounds how long machines take to serve again when nothing is wrong any more.
const recovery = time.Minute

// TestManyHosts has clients on three machines, whose page services, etcd members and cables
// fail at random. KV3FS_HISTORIES is how many histories it records; each takes some 20 s.
func TestManyHosts(t *testing.T) {
	text := os.Getenv("KV3FS_HISTORIES")
	if text == "" {
		t.Skip("make nightly runs it, with KV3FS_HISTORIES")
	}
	histories, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KV3FS_HISTORIES: %v", err)
	}
	if !inNamespace(t) {
		return
	}
	n := seed.New(t)
	for i := range histories {
		l := Load{Clients: 4, Keys: 100, Lease: 2 * time.Second, Reserve: 2 * time.Second, Deletes: true}
		// Every second history has more pages than keys, so that no key may be lost.
		l.Protocol = []Protocol{VLLM, SGLang}[i/2%2]
		l.NumPages = []int{4000, 60}[i%2]
		t.Run(fmt.Sprintf("%d, %s, %d pages", i, l.Protocol, l.NumPages), func(t *testing.T) { manyHosts(t, l, n+uint64(i)) })
		if t.Failed() {
			return // what follows would be of the same cause
		}
	}
}

func manyHosts(t *testing.T, l Load, n uint64) {
	m := startMachines(t, &l)
	m.await(l)
	h := record(t, l, n, func() {
		m.torment(t, rand.New(rand.NewPCG(n, 0)), 15*time.Second)
		m.await(l)
	})
	t.Logf("%+v", h.Counts())
	for _, err := range h.Check(Eviction(l.NumPages < 2*l.Keys)) {
		t.Error(err)
	}
	if c := h.Counts(); c.Saved == 0 || c.Found == 0 {
		t.Errorf("the history shows too little: %+v", c)
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
