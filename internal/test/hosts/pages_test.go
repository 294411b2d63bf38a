package hosts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// bounded is what every answer of a host that is cut off comes within: its requests end after --deadline, 5 s at most, but GlusterFS by itself would
// hang for 42 s.
func bounded() time.Duration { return onTime(30 * time.Second) }

// Engines of three hosts share one page file on a real file system, and one page service behind etcd. What one has saved, all find at once and read right, whoever leads the page service; the
// host that leads loses power, and the next one is cut off, and says so in time while it is. Where clients come back once, a host that was cut off needs
// a new client before it can be cut off again.
func pages(t *testing.T, h *Hosts, once bool) {
	p := &engines{t: t, h: h}
	all := []int{1, 2, 3}
	for _, host := range all {
		p.start(host)
	}
	for _, host := range all {
		p.save(host)
		p.load(all...)
	}
	for _, host := range all {
		eventually(t, fmt.Sprintf("host %d knows that another reads at once what it writes", host), func() bool {
			said := h.Log(host)
			if strings.Contains(said, "another host reads late what this one writes") {
				t.Fatalf("host %d: %s", host, said)
			}
			return strings.Contains(said, "another host reads at once what this one writes")
		})
	}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	wasCut := map[int]bool{}
	for range rounds {
		dead := p.leader()
		others := slices.DeleteFunc(slices.Clone(all), func(host int) bool { return host == dead })
		h.Do("kill", fmt.Sprint(dead))
		p.engine[dead].End()
		wasCut[dead] = false
		took := p.save(others[0])
		t.Logf("host %d led and lost power: host %d has saved after %v", dead, others[0], took.Round(time.Millisecond))
		p.save(others[1])
		p.load(others...)
		h.Do("heal")
		p.start(dead)
		p.load(dead)
		p.save(dead)
		p.load(all...)

		cut := p.leader()
		for once && wasCut[cut] {
			h.Do("kill", fmt.Sprint(cut))
			p.engine[cut].End()
			wasCut[cut] = false
			h.Do("heal")
			p.start(cut)
			cut = p.leader()
		}
		wasCut[cut] = true
		others = slices.DeleteFunc(slices.Clone(all), func(host int) bool { return host == cut })
		path := fmt.Sprint(Mount, "/cut")
		h.Must(cut, "yes | head -c 65536 >"+path)
		held := h.Hold(cut, path, 65536)
		h.Do("cut", fmt.Sprint(cut))
		p.isolated(cut, path, held)
		took = p.save(others[0])
		t.Logf("host %d led and was cut off: host %d has saved after %v more", cut, others[0], took.Round(time.Millisecond))
		p.save(others[1])
		p.load(others...)
		h.Do("heal")
		took = eventually(t, "what was registered before can be read again", func() bool {
			b, err := held.Read()
			if err == nil && string(b) != strings.Repeat("y\n", len(b)/2) {
				t.Fatal("other bytes than those of the file")
			}
			return err == nil
		})
		held.End()
		t.Logf("host %d is not cut off any more: it reads after %v", cut, took.Round(time.Millisecond))
		well(t, h, cut)
		p.load(cut) // by the process that was there before, through the same rings
		p.save(cut)
		p.load(all...)
		h.Must(cut, "rm -f "+path+"*")
	}
	for _, e := range p.engine {
		if e != nil {
			e.End()
		}
	}
}

// engines are one on each host, by its number.
type engines struct {
	t      *testing.T
	h      *Hosts
	engine [4]*Process
	saved  []string // keys that were confirmed
}

func (p *engines) start(host int) {
	p.t.Helper()
	p.engine[host] = p.h.Engine(host)
}

// until has the engine of a host do something until it has done it. Before, its page service or its file system may be away.
func (p *engines) until(host int, what string, keys []string) time.Duration {
	p.t.Helper()
	last := ""
	took := eventually(p.t, fmt.Sprintf("%s on host %d", what, host), func() bool {
		said := p.engine[host].Ask(what + " " + strings.Join(keys, " "))
		switch kind, _, _ := strings.Cut(said, ":"); kind {
		case "ok":
			return true
		case "unavailable", "sick":
			last = said
			return false
		}
		p.t.Fatalf("host %d: %s %d keys: %s", host, what, len(keys), said)
		return false
	})
	if last != "" {
		p.t.Logf("host %d: %s after %v; before: %s", host, what, took.Round(time.Millisecond), last)
	}
	return took
}

// save saves new keys on a host, more than one batch.
func (p *engines) save(host int) time.Duration {
	p.t.Helper()
	var keys []string
	for i := range batchPages + 3 {
		keys = append(keys, fmt.Sprintf("key-%d-of-host-%d", len(p.saved)+i, host))
	}
	took := p.until(host, "save", keys)
	p.saved = append(p.saved, keys...)
	return took
}

// load has hosts find and read all that was ever saved.
func (p *engines) load(hosts ...int) {
	p.t.Helper()
	for _, host := range hosts {
		p.until(host, "load", p.saved)
	}
}

// leader waits until a host says that it leads the page service.
func (p *engines) leader() (leader int) {
	p.t.Helper()
	eventually(p.t, "a host leads", func() bool {
		for host := 1; host <= 3; host++ {
			said, err := p.h.Run(host, "timeout 30 curl -sf http://127.0.0.1:18000/admin/v1/store")
			var store struct{ Role string }
			if err == nil && json.Unmarshal([]byte(said), &store) == nil && store.Role == "leading" {
				leader = host
				return true
			}
		}
		return false
	})
	return leader
}

// isolated asks a host that is cut off until its page service and its file system both say so. It may answer from memory before, and each
// answer comes in time.
func (p *engines) isolated(host int, path string, held *Held) {
	p.t.Helper()
	inTime := func(what string, do func() string) string {
		began := time.Now()
		said := do()
		if took := time.Since(began); took > bounded() {
			p.t.Errorf("host %d is cut off: %s took %v: %s", host, what, took, said)
		}
		return said
	}
	eventually(p.t, fmt.Sprintf("host %d finds nothing", host), func() bool {
		said := inTime("load", func() string { return p.engine[host].Ask("load " + p.saved[0]) })
		kind, _, _ := strings.Cut(said, ":")
		if kind != "ok" && kind != "sick" && kind != "unavailable" {
			p.t.Fatalf("host %d is cut off: load: %s", host, said)
		}
		return kind == "unavailable"
	})
	if said := inTime("save", func() string { return p.engine[host].Ask("save key-of-nobody") }); !strings.HasPrefix(said, "unavailable") {
		p.t.Errorf("host %d is cut off: save: %s", host, said)
	}
	said := inTime("a ring's read", func() string { _, err := held.Read(); return fmt.Sprint(err) })
	if !strings.Contains(said, "input/output error") && !strings.Contains(said, "timed out") {
		p.t.Errorf("host %d is cut off: a ring's read: %s", host, said)
	}
	for _, command := range []string{"ls " + Mount, "cat " + path} {
		said := inTime(command, func() string { _, err := p.h.Run(host, command); return fmt.Sprint(err) })
		if !strings.Contains(said, "Input/output error") {
			p.t.Errorf("host %d is cut off: %s: %s", host, command, said)
		}
	}
	sick(p.t, p.h, host, "")
}
