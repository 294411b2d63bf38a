package forward_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkExists measures one client that queries 512 keys of SGLang at the leader and at a follower, in
// turn, and reports how many times longer the follower takes.
func BenchmarkExists(b *testing.B) {
	l := newLeaders()
	leading := startHost(b, l, hostOptions{name: "a", token: secret})
	following := startHost(b, l, hostOptions{name: "b", token: secret})
	leading.lead(nil)
	l.set(leading.target)
	following.await("/0/initialize", `{"num_pages":4}`)
	var keys []string
	for i := range 512 {
		keys = append(keys, fmt.Sprintf("%q", fmt.Sprintf("%032x", i*7919)))
	}
	body := `{"keys":[` + strings.Join(keys, ",") + `]}`
	var ask [2]func()
	for i, h := range []*host{leading, following} {
		address := strings.TrimPrefix(h.url, "http://")
		c, err := net.Dial("tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		in := bufio.NewReader(c)
		text := fmt.Appendf(nil, "POST /0/exists HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		ask[i] = func() {
			if _, err := c.Write(text); err != nil {
				b.Fatal(err)
			}
			w, err := http.ReadResponse(in, nil)
			if err != nil || w.StatusCode != 200 {
				b.Fatal(w, err)
			}
			if _, err := io.Copy(io.Discard, w.Body); err != nil {
				b.Fatal(err)
			}
		}
	}
	var took [2][]time.Duration
	for b.Loop() {
		for i := range ask {
			began := time.Now()
			ask[i]()
			took[i] = append(took[i], time.Since(began))
		}
	}
	at, via := median(took[0]), median(took[1])
	b.ReportMetric(float64(at.Nanoseconds()), "leader-ns")
	b.ReportMetric(float64(via.Nanoseconds()), "follower-ns")
	b.ReportMetric(float64(via)/float64(at), "times")
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
