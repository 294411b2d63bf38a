package etcdlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func TestJudge(t *testing.T) {
	const quota = 1000
	for _, c := range []struct {
		what         string
		members      []cluster.Member
		urgent, room bool
	}{
		{"nobody answers", []cluster.Member{{Err: errors.New("silent"), InUseBytes: quota, QuotaBytes: quota}}, false, true},
		{"empty", []cluster.Member{{QuotaBytes: quota}}, false, true},
		{"49 %", []cluster.Member{{InUseBytes: 490, DatabaseBytes: 900, QuotaBytes: quota}}, false, true},
		{"50 %", []cluster.Member{{InUseBytes: 500, DatabaseBytes: 900, QuotaBytes: quota}}, true, true},
		{"70 %", []cluster.Member{{InUseBytes: 700, DatabaseBytes: 900, QuotaBytes: quota}}, true, false},
		{"70 % of one", []cluster.Member{{QuotaBytes: quota}, {InUseBytes: 700, QuotaBytes: quota}}, true, false},
		{"a large file", []cluster.Member{{InUseBytes: 100, DatabaseBytes: 950, QuotaBytes: quota}}, false, false},
		{"an alarm", []cluster.Member{{InUseBytes: 100, QuotaBytes: quota, NoSpace: true}}, true, false},
		{"a quota that nobody tells", []cluster.Member{{InUseBytes: cluster.DefaultQuotaBytes*7/10 + 1}}, true, false},
		{"half of one that nobody tells", []cluster.Member{{InUseBytes: cluster.DefaultQuotaBytes / 2}}, true, true},
	} {
		urgent, room := judge(c.members)
		if urgent != c.urgent || (room == nil) != c.room {
			t.Errorf("%s: urgent %t, room %v", c.what, urgent, room)
		}
		if room != nil && !errors.Is(room, pageservice.ErrUnavailable) {
			t.Errorf("%s: %v", c.what, room)
		}
	}
}

// An etcd that fills up refuses what is new at 70 %, and everything when it is full. Then writes fail clearly, the leader goes on
// leading, followers follow, and an operator's repair is enough.
func TestFullEtcd(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{QuotaBytes: 64 << 20})
	s := newSite(t, members)
	a := s.lead("a")
	b := s.follow("b")
	a.mustWrite("1")
	if err := a.Room(); err != nil {
		t.Fatal(err)
	}

	// Values of a MiB would leave so many holes in etcd's file that it may be full before 70 % are used.
	const each = 128 << 10
	ballast := strings.Repeat("x", each)
	for i := range 46 << 20 / each {
		s.put(fmt.Sprintf("/test-ballast/%d", i), ballast)
	}
	await(t, "nothing new is stored", func() bool { return a.Room() != nil })
	if err := a.Room(); !errors.Is(err, pageservice.ErrUnavailable) || !strings.Contains(err.Error(), "64 MiB") || !strings.Contains(err.Error(), "defrag") {
		t.Error(err)
	}
	a.mustWrite("2")

	members.Fill()
	want := []string{"1", "2"}
	for i := range 3 {
		if err := a.write(fmt.Sprint("full", i)); err == nil || errors.Is(err, pageservice.ErrDemoted) || !strings.Contains(err.Error(), "space") {
			t.Fatal("a write to a full etcd:", err)
		}
	}
	if !a.Valid() || a.State().Role != Leading {
		t.Errorf("%+v", a.State())
	}
	b.applies(want...)
	s.follow("late").applies(want...) // a full etcd is read

	members.Drain()
	a.mustWrite("3")
	await(t, "new things are stored", func() bool { return a.Room() == nil })
	b.applies("1", "2", "3")
}

// An attempt was lost, and then etcd is full. Writes are not kept waiting for what became of it: it is kept from succeeding by what a full etcd grants.
func TestFullAfterLostAttempt(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{QuotaBytes: 16 << 20})
	s := newSite(t, members)
	a, n := s.through("a")
	b := s.follow("b")
	a.mustWrite("1")
	members.Fill()
	for i := range 3 {
		n.next(a.keys.log(), stuck)
		wait := a.begin(fmt.Sprint("lost", i))
		if err := waitFor(wait); err == nil || errors.Is(err, pageservice.ErrDemoted) || !strings.Contains(err.Error(), "space") {
			t.Fatal("a write to a full etcd:", err)
		}
	}
	if !a.Valid() || a.State().Role != Leading {
		t.Errorf("%+v", a.State())
	}
	members.Drain()
	if n.arrive(s) != 0 {
		t.Error("a write that was said to have failed was done")
	}
	a.mustWrite("2")
	b.applies("1", "2")
}

// What takes etcd's room may be the log itself. Snapshots and compaction give it back while the index waits for it.
func TestLogGivesRoomBack(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{QuotaBytes: 24 << 20})
	s := newSite(t, members)
	s.named = true
	s.o.SnapshotBytes = 1 << 20
	s.o.History = time.Hour // until it is urgent
	a := s.lead("a")
	b := s.follow("b")
	value := strings.Repeat("v", 50_000)
	for i := range 480 { // 24 MB, as many as the quota
		await(t, "there is room", func() bool { return a.Room() == nil })
		a.mustWrite(fmt.Sprintf("n%d=%d%s", i%3, i, value))
	}
	b.applies(a.owner.all()...)
}
