package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestEnginesOfManyHosts: engines of both protocols on three hosts share one set of page files: ranks of one model are on different hosts, engines that save at once get different
// pages and find each other's keys; a host that leaves for good, and its directory, take nothing with them.
func TestEnginesOfManyHosts(t *testing.T) {
	members := etcd.Start(t, etcd.Options{Members: 1})
	p := newPagesHosts(t, "etcd://"+members.Endpoints()[0]+"/kv3fs/engines")
	a, b, c := p.start("a"), p.start("b"), p.start("c")

	// vLLM with two ranks, each on a host of its own: a key is there once both have stored it.
	a.await("/rank/0/initialize", `{"num_pages":8,"role":"worker"}`)
	b.await("/rank/1/initialize", `{"num_pages":8,"role":"worker"}`)
	for rank, h := range []*pagesHost{a, b} {
		if got := c.await("/keys/batch_exists", `{"keys":["V"]}`); got != `{"exists":[false]}` {
			t.Errorf("before rank %d has stored it: %s", rank, got)
		}
		var got struct{ Results [][2]any }
		if answer := h.await("/keys/batch_allocate", fmt.Sprintf(`{"rank":%d,"keys":[["V",""]]}`, rank)); json.Unmarshal([]byte(answer), &got) != nil || len(got.Results) != 1 {
			t.Fatal(answer)
		}
		h.await("/keys/confirm_write", fmt.Sprintf(`{"rank":%d,"confirmations":[["V",%v]]}`, rank, got.Results[0][1]))
	}
	vllm := func() {
		t.Helper()
		for _, h := range p.others() {
			if got := h.await("/keys/batch_exists", `{"keys":["V"]}`); got != `{"exists":[true]}` {
				t.Errorf("host %s: %s", h.name, got)
			}
		}
	}
	vllm()

	// SGLang on each host, all with the file of rank 0.
	const each = 8
	saved := make([]map[string]int, len(p.hosts))
	var engines sync.WaitGroup
	for i, h := range p.hosts {
		h.await("/0/initialize", fmt.Sprintf(`{"num_pages":%d}`, (len(p.hosts)+1)*each))
		saved[i] = map[string]int{}
		engines.Go(func() {
			for n := range each {
				key := fmt.Sprintf("%s %d", h.name, n)
				saved[i][key] = h.save(key)
			}
		})
	}
	engines.Wait()
	where, users := map[string]int{}, map[int]string{}
	for _, of := range saved {
		for key, page := range of {
			if users[page] != "" {
				t.Errorf("page %d is that of %s and of %s", page, users[page], key)
			}
			where[key], users[page] = page, key
		}
	}
	for _, h := range p.hosts {
		h.finds(where)
	}

	// c leaves for good, with a page reserved, and is not listed any more.
	c.await("/0/reserve_and_allocate_page_indices", `{"keys":[["never written",""]]}`)
	c.kill()
	if err := os.RemoveAll(p.file("data/.kv3fs/hosts/c")); err != nil {
		t.Fatal(err)
	}
	for _, h := range p.others() {
		h.finds(where)
	}
	vllm()
	for deadline := time.Now().Add(clusterPatience); ; time.Sleep(50 * time.Millisecond) {
		names := ""
		for _, h := range a.state().Hosts {
			names += h.Host
		}
		if names != "" && !strings.Contains(names, "c") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("hosts %q are listed", names)
		}
	}
}
