package workload

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestBlockPath(t *testing.T) {
	for _, c := range []struct {
		id    uint64
		rank  int
		bytes int64
		want  string
	}{
		{0, 0, 1, "00/0000000000000000-r0-1"},
		{0x31f, 7, 65536, "1f/000000000000031f-r7-65536"},
		{1<<64 - 1, 1023, 1 << 32, "ff/ffffffffffffffff-r1023-4294967296"},
	} {
		if got := blockPath(c.id, c.rank, c.bytes); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestDead(t *testing.T) {
	self, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := parseProcess(self.String()); !ok || p != self {
		t.Fatalf("%v does not survive its name %s", p, self)
	}
	with := func(change func(*process)) string {
		p := self
		change(&p)
		return p.String()
	}
	now := time.Now()
	for _, c := range []struct {
		name    string
		process string
		age     time.Duration
		want    bool
	}{
		{"we", self.String(), 100 * time.Hour, false},
		{"no such pid", with(func(p *process) { p.pid = "4194305" }), 0, true}, // above the kernel's limit
		{"our pid, another start", with(func(p *process) { p.started += "1" }), 0, true},
		{"another host, lately", with(func(p *process) { p.boot = "00000000" }), time.Hour, false},
		{"another host, long ago", with(func(p *process) { p.boot = "00000000" }), 25 * time.Hour, true},
		{"another container, lately", with(func(p *process) { p.namespace = "1" }), time.Hour, false},
		{"no name of ours", "notes", 100 * time.Hour, false},
	} {
		if got := dead(c.process, self, now.Add(-c.age), now); got != c.want {
			t.Errorf("%s: dead is %v", c.name, got)
		}
	}
}

func TestRemoveDeadTemps(t *testing.T) {
	dir := t.TempDir()
	self, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := removeDeadTemps(dir, self); n != 0 || err != nil {
		t.Fatalf("with nothing there: %d, %v", n, err)
	}
	gone := self
	gone.pid = "4194305"
	for _, p := range []process{self, gone} {
		temps := filepath.Join(dir, tempDir, p.String())
		if err := os.MkdirAll(temps, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			os.WriteFile(filepath.Join(temps, strconv.Itoa(i)), nil, 0o644)
		}
	}
	if n, err := removeDeadTemps(dir, self); n != 3 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, tempDir, "*", "*"))
	if len(left) != 3 || filepath.Base(filepath.Dir(left[0])) != self.String() {
		t.Errorf("left: %v", left)
	}
}
