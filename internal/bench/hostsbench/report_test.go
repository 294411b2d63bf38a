package hostsbench

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/bench/pagesbench"
)

// A report with everything in it fits on a terminal.
func TestTableFits(t *testing.T) {
	r := Report{
		Hosts: 3, Store: "Cache|Near|Ds3fs", Near: "/mnt/near (ext4)", Far: "/mnt/far (fuse.glusterfs)", CPUs: 32, Model: "Llama-3.1-70B", Hardware: "4xH100",
		Rows:  []Row{{Order: "shuffled", Name: rowMemory, Host: 2, Requests: 2000, FullMs: 12345, MeasuredMs: 1234, P50Ms: 1200, P99Ms: 2000, Speedup: 10}},
		Reads: []Reads{{Hosts: 1, GBps: 2}, {Hosts: 2, GBps: 4, Scaling: 2, Bound: 2}},
		Rings: []Ring{{SizeBytes: 1 << 20, Threads: 4, Ring: measure.Spread{Median: 1, Min: 1, Max: 1}}},
		Pages: &pagesbench.HostsReport{Batch: 512, Services: []pagesbench.HostService{{URL: "http://127.0.0.1:18000"}, {URL: "http://127.0.0.1:18001"}}},
	}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, head := range append(append(append([]string{}, rowHeads...), readHeads...), pageHeads...) {
		if !strings.Contains(b.String(), head) {
			t.Errorf("%q is missing", head)
		}
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > measure.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// What was measured once is said to be, on the terminal and on the page.
func TestWarnsOfWhatWasMeasuredOnce(t *testing.T) {
	for want, r := range map[bool]Report{
		true:  {Rows: []Row{{Order: "shuffled", Name: rowCold}}},
		false: {Rings: []Ring{{SizeBytes: 1 << 20}}},
	} {
		var table, page strings.Builder
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if err := r.WriteHTML(&page, measure.Circumstances{}); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{table.String(), page.String()} {
			if strings.Contains(text, "measured once") != want {
				t.Errorf("with rows %t: %s", want, text)
			}
		}
	}
}
