package hosts

import (
	"strings"
	"sync"
	"testing"
)

// Block stores of several hosts, with their checksum logs, quarantine and temporary files in one directory. A load answers what somebody has saved or is
// a miss, and in the end what was saved last.
func blocks(t *testing.T, h *Hosts) {
	dir := Mount + "/blocks"
	h.Must(1, "mkdir "+dir)
	all := []*Process{nil}
	for host := 1; host <= 3; host++ {
		eventually(t, "the directory is there", func() bool { _, err := h.Run(host, "test -d "+dir); return err == nil })
		all = append(all, h.Blocks(host, dir))
	}
	must := func(host int, what string) {
		t.Helper()
		if said := all[host].Ask(what); said != "ok" {
			t.Fatalf("host %d: %s: %s", host, what, said)
		}
	}
	// comes waits until all hosts load a variant, which a miss may precede.
	comes := func(want string) {
		t.Helper()
		for host := 1; host <= 3; host++ {
			eventually(t, want, func() bool {
				said := all[host].Ask("load")
				if said != want && said != "miss" && said != "corrupt" {
					t.Fatalf("host %d: load: %s, want %s", host, said, want)
				}
				return said == want
			})
		}
	}

	must(1, "save 1")
	comes("variant 1")
	// What host 1 has recorded of it must not count once host 2 has saved another one. Who has the old one open goes on with it.
	must(2, "delete")
	must(2, "save 2")
	for host := 1; host <= 3; host += 2 {
		for range 5 {
			if said := all[host].Ask("load"); said != "variant 1" && said != "variant 2" && said != "miss" && said != "corrupt" {
				t.Errorf("host %d: load of what host 2 has saved anew: %s", host, said)
			}
		}
		all[host].End()
		all[host] = h.Blocks(host, dir)
	}
	comes("variant 2")

	// A damaged block is found by two hosts at once, and set aside; one that is saved meanwhile stays.
	block := strings.TrimSpace(h.Must(3, "find "+dir+" -name '.kv3fs*' -prune -o -type f -size 64k -print"))
	h.Must(3, "printf damage | dd of="+block+" bs=1 seek=9000 conv=notrunc 2>/dev/null")
	var hosts sync.WaitGroup
	for host := 1; host <= 2; host++ {
		hosts.Go(func() {
			eventually(t, "the host finds the damage", func() bool {
				said := all[host].Ask("load")
				if said != "variant 2" && said != "miss" && said != "corrupt" {
					t.Errorf("host %d: load of a damaged block: %s", host, said)
				}
				return said != "variant 2"
			})
		})
	}
	hosts.Wait()
	eventually(t, "the block can be saved again", func() bool {
		if said := all[3].Ask("save 3"); said != "ok" {
			t.Fatal(said)
		}
		return all[3].Ask("load") == "variant 3"
	})
	// A host that is late to set the damaged one aside may make the record of the good one void: that is a miss, and it is saved again.
	for host := 1; host <= 2; host++ {
		eventually(t, "the block that was saved again", func() bool {
			said := all[host].Ask("load")
			if said == "miss" || said == "corrupt" {
				all[3].Ask("save 3")
			}
			return said == "variant 3"
		})
	}
	within(t, namesBound(), "the damaged block is in the quarantine", func() bool {
		aside, err := h.Run(3, "ls "+dir+"/.kv3fs-quarantine")
		return err == nil && strings.Contains(aside, "0102030")
	})

	// What a dead host was writing is removed by others once it is old, and what a live one is writing is not.
	must(1, "draft")
	must(2, "draft")
	drafts := func() []string { return strings.Fields(h.Must(3, "ls "+dir+"/.kv3fs-temp")) }
	eventually(t, "two drafts", func() bool { return len(drafts()) == 2 })
	both := drafts()
	h.Must(3, "touch -d '2 days ago' "+dir+"/.kv3fs-temp/"+both[0])
	all[3].End()
	all[3] = h.Blocks(3, dir) // which tidies up
	eventually(t, "the old draft is gone", func() bool { now := drafts(); return len(now) == 1 && now[0] == both[1] })
	for _, b := range all[1:] {
		b.End()
	}
}
