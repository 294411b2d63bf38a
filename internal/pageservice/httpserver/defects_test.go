package httpserver_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// These tests show the defects of the reference servers (clients.md 6.6 and 7.6) through
// their own protocols, and what happens here instead.

// clock is the time of an index: it stands still unless a test advances it, so that no
// lease or reservation ends because the machine is busy.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_800_000_000, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// times are those of an index in these tests: the defaults.
var times = pageservice.Options{}.WithDefaults()

// startStill starts a service with a clock that the test advances.
func startStill(t testing.TB) (*service, *clock) {
	t.Helper()
	c := &clock{}
	log := journal.New(t.TempDir(), journal.Options{})
	return startWith(t, log, httpserver.Options{}, index.Options{Now: c.now}), c
}

// saveV stores a key of vLLM on a rank, which must get a page.
func (s *service) saveV(rank int, key string) (page int64) {
	s.t.Helper()
	page = s.allocateV(rank, key)[0]
	if page < 0 {
		s.t.Fatalf("no page for %s", key)
	}
	s.ok("/keys/confirm_write", fmt.Sprintf(`{"rank":%d,"confirmations":[["%s",%d]],"pages_to_release":[]}`, rank, key, page))
	return page
}

func (s *service) allocateV(rank int, keys ...string) (pages []int64) {
	s.t.Helper()
	var got struct{ Results [][2]any }
	s.decode(s.ok("/keys/batch_allocate", fmt.Sprintf(`{"rank":%d,"keys":%s}`, rank, pairs(keys))), &got)
	for _, r := range got.Results {
		pages = append(pages, int64(r[1].(float64)))
	}
	return pages
}

func (s *service) reserveS(keys ...string) (pages []int64) {
	s.t.Helper()
	var got struct{ Indices [][2]any }
	s.decode(s.ok("/0/reserve_and_allocate_page_indices", `{"keys":`+pairs(keys)+`}`), &got)
	for _, r := range got.Indices {
		pages = append(pages, int64(r[1].(float64)))
	}
	return pages
}

func (s *service) saveS(key string) (page int64) {
	s.t.Helper()
	page = s.reserveS(key)[0]
	if page < 0 {
		s.t.Fatalf("no page for %s", key)
	}
	s.ok("/0/confirm_write", fmt.Sprintf(`{"written_keys_to_confirm":[["%s",%d]],"pages_to_release":[]}`, key, page))
	return page
}

func (s *service) decode(text string, into any) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		s.t.Fatal(text, err)
	}
}

func pairs(keys []string) string {
	all := make([][2]string, len(keys))
	for i, k := range keys {
		all[i][0] = k
	}
	return jsonText(all)
}

// soon waits until a condition holds.
func soon(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// where counts the pages of a set by owner.
func (s *service) where(set string) (p pageservice.RankPages) {
	s.t.Helper()
	all, err := s.index.Stat(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, sp := range all {
		if sp.Space.Set != set {
			continue
		}
		for _, r := range sp.Ranks {
			p.NumPages += r.NumPages
			p.Free += r.Free
			p.Reserved += r.Reserved
			p.Keyed += r.Keyed
			p.Quarantined += r.Quarantined
		}
	}
	if p.Free+p.Reserved+p.Keyed+p.Quarantined != p.NumPages {
		s.t.Errorf("pages are lost: %+v", p)
	}
	return p
}

// 6.6: "no eviction and no delete, so the store stops accepting once full".
func TestVLLMStoreAcceptsWhenFull(t *testing.T) {
	s, clock := startStill(t)
	s.ok("/rank/0/initialize", `{"num_pages":3}`)
	for i := range 20 {
		key := fmt.Sprint("k", i)
		page := s.allocateV(0, key)[0]
		if page < 0 { // every page has a key that was just reported to exist
			clock.advance(times.Hold + times.Quarantine)
			page = s.allocateV(0, key)[0]
		}
		if page < 0 {
			t.Fatalf("no page for %s", key)
		}
		s.ok("/keys/confirm_write", fmt.Sprintf(`{"rank":0,"confirmations":[["%s",%d]]}`, key, page))
		s.want("/keys/batch_exists", `{"keys":["`+key+`"]}`, 200, `{"exists":[true]}`)
	}
	s.want("/keys/batch_exists", `{"keys":["k0"]}`, 200, `{"exists":[false]}`)
}

// 6.6: "restart loses everything and allocate/locations return 500 until vLLM
// restarts"; 7.6: "up to one interval of mapping is lost on crash". The copy of the
// file is what kill -9 would leave.
func TestRestartLosesNothing(t *testing.T) {
	dir, crashed := t.TempDir(), t.TempDir()
	x, err := index.Open(journal.New(dir, journal.Options{}), index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, x, httpserver.Options{}, "")
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.ok("/0/initialize", `{"num_pages":4,"namespace":"kv"}`)
	inV, inS := s.saveV(0, "K"), s.saveS("K")
	s.allocateV(0, "unconfirmed")
	text, err := os.ReadFile(filepath.Join(dir, journal.FileName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(crashed, journal.FileName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if status, answer := s.post("/keys/batch_exists", `{"keys":["K"]}`); status != 503 {
		t.Errorf("a closed index: %d %s", status, answer)
	}
	for name, dir := range map[string]string{"stopped": dir, "killed": crashed} {
		t.Run(name, func(t *testing.T) {
			x, err := index.Open(journal.New(dir, journal.Options{}), index.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			s := startOn(t, x, httpserver.Options{}, "")
			s.want("/keys/batch_exists", `{"keys":["K","unconfirmed"]}`, 200, `{"exists":[true,false]}`)
			s.want("/keys/get_locations", `{"rank":0,"keys":["K"]}`, 200, fmt.Sprintf(`{"locations":[%d]}`, inV))
			s.want("/0/get_page_indices", `{"keys":["K"]}`, 200, fmt.Sprintf(`{"indices":[%d]}`, inS))
			s.saveV(0, "after")
			s.saveS("after")
		})
	}
}

// 6.6: "reserved pages never confirmed leak"; 7.6: "a writer that dies between
// reserve and confirm loses the page".
func TestDeadWritersPagesComeBack(t *testing.T) {
	s, clock := startStill(t)
	s.ok("/rank/0/initialize", `{"num_pages":2}`)
	s.ok("/0/initialize", `{"num_pages":2}`)
	s.allocateV(0, "a", "b")
	s.reserveS("a", "b")
	clock.advance(times.Reserve + times.Quarantine)
	if s.allocateV(0, "c", "d")[0] < 0 {
		t.Error("vLLM's pages are not back")
	}
	if s.reserveS("c", "d")[1] < 0 {
		t.Error("SGLang's pages are not back")
	}
	s.where("vllm")
}

// 6.6: "duplicate keys inside one batch leak all but the last page".
func TestDuplicateKeysGetOnePage(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.want("/keys/batch_allocate", `{"rank":0,"keys":[["b",""],["a",""],["b","x"],["a",""]]}`, 200, `{"rank":0,"results":[["b",0],["a",1]]}`)
	s.ok("/keys/confirm_write", `{"rank":0,"confirmations":[["b",0],["a",1],["b",0]]}`)
	if p := s.where("vllm"); p.Free != 2 || p.Keyed != 2 {
		t.Errorf("%+v", p)
	}
}

// 6.6: "a second confirm of a partial key by the same rank overwrites and leaks the
// first page"; 7.6: "two writers of one key leak one page (confirm overwrites the
// mapping)".
func TestSecondConfirmationLeaksNothing(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.ok("/rank/1/initialize", `{"num_pages":4}`)
	first, second := s.allocateV(0, "K")[0], s.allocateV(0, "K")[0]
	for _, page := range []int64{first, second} {
		s.ok("/keys/confirm_write", fmt.Sprintf(`{"rank":0,"confirmations":[["K",%d]]}`, page))
	}
	if p := s.where("vllm"); p.Keyed != 1 {
		t.Errorf("vLLM: %+v", p)
	}

	s.ok("/0/initialize", `{"num_pages":4}`)
	first, second = s.reserveS("K")[0], s.reserveS("K")[0]
	for _, page := range []int64{first, second} {
		s.ok("/0/confirm_write", fmt.Sprintf(`{"written_keys_to_confirm":[["K",%d]],"pages_to_release":[]}`, page))
	}
	if p := s.where("sglang/kv/0"); p.Keyed != 1 {
		t.Errorf("SGLang: %+v", p)
	}
	s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
}

// 6.6: "failed writes release pages that may belong to a complete key, so another
// key can receive a live page".
func TestFailedWriteReleasesNobodysPage(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":2}`)
	page := s.saveV(0, "K")
	s.ok("/keys/confirm_write", fmt.Sprintf(`{"rank":0,"confirmations":[],"pages_to_release":[%d]}`, page))
	s.want("/keys/get_locations", `{"rank":0,"keys":["K"]}`, 200, fmt.Sprintf(`{"locations":[%d]}`, page))
	if got := s.allocateV(0, "other")[0]; got == page || got < 0 {
		t.Errorf("another key got page %d", got)
	}
}

// 6.6: "start-up race: a key confirmed by rank 0 while only rank 0 is initialised
// becomes complete too early, and once rank 1 confirms it is incomplete forever".
func TestStartUpRace(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.saveV(0, "K")
	s.ok("/rank/1/initialize", `{"num_pages":4}`)
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	s.saveV(1, "K")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)

	// With a fixed world, it is never too early.
	s = start(t, httpserver.Options{}, pageservice.Options{World: 2})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.saveV(0, "K")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	s.ok("/rank/1/initialize", `{"num_pages":4}`)
	s.saveV(1, "K")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
}

// 6.6: "/clear also forgets the ranks: not usable as a live flush".
func TestClearIsALiveFlush(t *testing.T) {
	s, _ := startStill(t)
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.saveV(0, "K")
	s.ok("/clear", "")
	s.want("/keys/get_locations", `{"rank":0,"keys":["K"]}`, 200, `{"locations":[null]}`)
	s.saveV(0, "K")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
}

// 6.6: "with too few free pages even a batch that is half already-present loses its
// new half": all that are new get a page, or none does and none is kept.
func TestTooFewPagesReserveNone(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":3}`)
	page := s.saveV(0, "K")
	s.ok("/keys/get_locations", `{"rank":0,"keys":["K"]}`) // leases it
	if got := s.allocateV(0, "K", "a", "b", "c"); got[0] != page || got[1] != -1 || got[2] != -1 || got[3] != -1 {
		t.Errorf("%v", got)
	}
	if got := s.allocateV(0, "K", "a", "b"); got[0] != page || got[1] < 0 || got[2] < 0 {
		t.Errorf("pages of a refused batch are not free: %v", got)
	}
}

// 6.6: a repeated initialise "is a no-op even with another num_pages".
func TestOtherNumberOfPages(t *testing.T) {
	var log strings.Builder
	s := start(t, httpserver.Options{Log: textLog(&log)}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.saveV(0, "K")
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
	s.ok("/rank/0/initialize", `{"num_pages":2}`)
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	if p := s.where("vllm"); p.NumPages != 2 {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "dropped_pages=1") {
		t.Errorf("the log does not mention the dropped page:\n%s", &log)
	}
}

// 7.6: "eviction without pins lets a concurrent reader receive another key's bytes":
// while a location is leased its page goes to no writer, and then into quarantine.
func TestLeasedPagesAreNotReused(t *testing.T) {
	s, clock := startStill(t)
	s.ok("/0/initialize", `{"num_pages":1}`)
	s.saveS("K")
	s.ok("/0/get_page_indices", `{"keys":["K"]}`)
	for _, held := range []time.Duration{times.Lease, times.Quarantine} {
		s.want("/0/reserve_and_allocate_page_indices", `{"keys":[["other",""]]}`, 200, `{"indices":[[false,-1]]}`)
		clock.advance(held)
	}
	if s.reserveS("other")[0] < 0 {
		t.Error("the page was not given out after the lease and the quarantine")
	}
}

// 7.6: "empty map + empty list raises KeyError -> 500": no page is -1, which the
// client leaves out.
func TestNothingLeftIsNoError(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/0/initialize", `{"num_pages":1}`)
	s.reserveS("a")
	s.want("/0/reserve_and_allocate_page_indices", `{"keys":[["b",""]]}`, 200, `{"indices":[[false,-1]]}`)
}

// A client that clears a set is in the log, but cannot fill it.
func TestClearIsLogged(t *testing.T) {
	var log strings.Builder
	s := start(t, httpserver.Options{Log: textLog(&log)}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	for range 3 {
		s.ok("/clear", "")
	}
	if text := log.String(); strings.Count(text, "a client cleared a set of keys") != 1 || !strings.Contains(text, "set=vllm") {
		t.Errorf("the log is\n%s", text)
	}
}
