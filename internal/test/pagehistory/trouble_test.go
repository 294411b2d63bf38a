package pagehistory

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"
)

// trouble is one thing that goes wrong on a machine. It returns what sets it right, which
// must not fail.
type trouble struct {
	name  string
	begin func(m *machines, i int, rng *rand.Rand) (end func())
}

// others returns what matches packets from or to the other machines.
func (m *machines) others(i int, direction string) string {
	var all []string
	for j, x := range m.all {
		if j != i {
			all = append(all, x.address.String())
		}
	}
	return "ip " + direction + " { " + strings.Join(all, ", ") + " }"
}

// cut has machine i drop packets until end.
func (m *machines) cut(i int, in, out []string) (end func()) {
	m.all[i].filter(m.t, in, out)
	return func() { m.all[i].filter(m.t, nil, nil) }
}

func troubles() []trouble {
	return []trouble{
		{"its page service is killed", func(m *machines, i int, _ *rand.Rand) func() {
			m.all[i].child.Kill()
			return func() {
				if err := m.all[i].start(); err != nil {
					m.t.Error(err)
				}
			}
		}},
		{"its page service is stopped", func(m *machines, i int, _ *rand.Rand) func() {
			return m.pause(i)
		}},
		{"its etcd member is killed", func(m *machines, i int, _ *rand.Rand) func() {
			m.etcd.Kill(i)
			return func() { m.etcd.Restart(i) }
		}},
		{"its etcd member is stopped", func(m *machines, i int, _ *rand.Rand) func() {
			m.etcd.Stop(i)
			return func() { m.etcd.Continue(i) }
		}},
		{"it is cut off from the others", func(m *machines, i int, _ *rand.Rand) func() {
			return m.cut(i, []string{m.others(i, "saddr")}, []string{m.others(i, "daddr")})
		}},
		{"it hears nothing from the others", func(m *machines, i int, _ *rand.Rand) func() {
			return m.cut(i, []string{m.others(i, "saddr")}, nil)
		}},
		{"the others hear nothing from it", func(m *machines, i int, _ *rand.Rand) func() {
			return m.cut(i, nil, []string{m.others(i, "daddr")})
		}},
		{"its page service is cut off from etcd", func(m *machines, i int, _ *rand.Rand) func() {
			return m.cut(i, nil, []string{fmt.Sprintf("tcp dport %d", etcdPort)})
		}},
		{"page services are cut off from it", func(m *machines, i int, _ *rand.Rand) func() {
			return m.cut(i, []string{fmt.Sprintf("tcp dport %d", peersPort)}, []string{fmt.Sprintf("tcp dport %d", peersPort)})
		}},
		{"it accepts no page service", func(m *machines, i int, _ *rand.Rand) func() {
			return m.cut(i, []string{fmt.Sprintf("tcp dport %d ip saddr != 10.77.0.100", peersPort)}, nil)
		}},
	}
}

// pause stops a page service until end.
func (m *machines) pause(i int) (end func()) {
	pid := m.all[i].child.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		m.t.Error(err)
	}
	return func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			m.t.Error(err)
		}
	}
}

// torment lets things go wrong for a while, at most one on a machine at a time, and sets all
// right. Each lasts up to twice as long as a leader's lease.
func (m *machines) torment(t *testing.T, rng *rand.Rand, howLong time.Duration) {
	type wrong struct {
		end   func()
		until time.Time
	}
	now := make([]*wrong, len(m.all))
	all := troubles()
	for end := time.Now().Add(howLong); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i, w := range now {
			switch {
			case w != nil && time.Now().After(w.until):
				w.end()
				now[i] = nil
			case w == nil && rng.IntN(100) == 0:
				what := all[rng.IntN(len(all))]
				d := time.Duration(rng.Int64N(int64(10 * time.Second)))
				t.Logf("%s machine %d: %s, for %v", time.Now().Format("05.000"), i, what.name, d)
				now[i] = &wrong{what.begin(m, i, rng), time.Now().Add(d)}
			}
		}
	}
	for _, w := range now {
		if w != nil {
			w.end()
		}
	}
}
