package doctor

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

const lineWidth = 100

func sample() *Report {
	r := &Report{Mount: "/mnt/3fs"}
	r.add(ok("kernel", "Linux 6.18"),
		Finding{ID: "data.bandwidth", Status: Note, Found: strings.Repeat("long words, ", 30), Needed: strings.Repeat("more of them, ", 20)},
		Finding{ID: "shm.size", Status: Warning, Found: "little", Needed: "much", Fix: "mount   -o remount"},
		Finding{ID: "mount", Status: Failure, Found: "none", Needed: "one", Fix: strings.Repeat("x ", 90)})
	return r
}

func TestTable(t *testing.T) {
	var plain, coloured strings.Builder
	if err := sample().WriteTable(&plain, lineWidth, false); err != nil {
		t.Fatal(err)
	}
	if err := sample().WriteTable(&coloured, lineWidth, true); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(plain.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > lineWidth && !strings.HasPrefix(line, "         fix:    ") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, part := range []string{
		"ok       kernel          Linux 6.18\n", "\nWARNING  shm.size        little\n         needed: much\n         fix:    mount   -o remount\n",
		"\n         fix:    " + strings.Repeat("x ", 90) + "\n", // to be pasted as it is
		"\nFAILURE  mount           none\n", "\nThis will not work: 1 failure, 1 warning, 1 note.\n",
	} {
		if !strings.Contains(plain.String(), part) {
			t.Errorf("no %q in\n%s", part, plain.String())
		}
	}
	if strings.Contains(plain.String(), "\x1b") || !strings.Contains(coloured.String(), "\x1b[1;31mFAILURE\x1b[0m  mount") {
		t.Errorf("colours:\n%q", coloured.String())
	}
}

// An interrupted doctor reports neither that all is well nor failures of checks that
// were cut short.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := local()
	o.Fix, o.Engine = true, "vllm"
	r := Run(ctx, *o)
	var text strings.Builder
	if err := r.WriteTable(&text, lineWidth, false); err != nil || !strings.Contains(text.String(), "Interrupted") || len(r.Findings) != 0 {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func TestExitStatus(t *testing.T) {
	for s, status := range map[Status]int{OK: 0, Note: 0, Warning: 1, Failure: 2} {
		r := &Report{}
		r.add(ok("x", "fine"), Finding{ID: "y", Status: s})
		r.add(ok("z", "fine"))
		if r.ExitStatus() != status || r.Status != s {
			t.Errorf("%v: %d", s, r.ExitStatus())
		}
	}
}

// The names in JSON are stable across versions.
func TestJSON(t *testing.T) {
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`{"status":"failure","mount":"/mnt/3fs","findings":[{"id":"kernel","status":"ok","found":"Linux 6.18"}`,
		`{"id":"shm.size","status":"warning","found":"little","needed":"much","fix":"mount   -o remount"}`,
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil || back.Status != Failure || len(back.Findings) != 4 {
		t.Errorf("%+v, %v", back, err)
	}
	if err := new(Status).UnmarshalText([]byte("splendid")); err == nil {
		t.Error("splendid is a status")
	}
}
