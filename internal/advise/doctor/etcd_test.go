package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func TestJudgeEtcd(t *testing.T) {
	well := cluster.Member{Endpoint: "a:1", Version: "3.6.11", DatabaseBytes: 1 << 20, InUseBytes: 1 << 19, QuotaBytes: 8 << 30}
	with := func(change func(*cluster.Member)) []cluster.Member {
		other := well
		change(&other)
		return []cluster.Member{well, well, other}
	}
	for what, c := range map[string]struct {
		members                 []cluster.Member
		member, versions, space Status
		says                    string
	}{
		"all is well":       {with(func(*cluster.Member) {}), OK, OK, OK, "3.6.11"},
		"two members":       {[]cluster.Member{well, well}, Warning, OK, OK, "three members"},
		"one is gone":       {with(func(m *cluster.Member) { *m = cluster.Member{Endpoint: "b:2", Err: errors.New("refused")} }), Warning, OK, OK, "b:2: refused"},
		"corrupt":           {with(func(m *cluster.Member) { m.Corrupt = true }), Failure, OK, OK, "CORRUPT"},
		"an old version":    {with(func(m *cluster.Member) { m.Version = "3.4.23" }), OK, Warning, OK, "stale reads"},
		"an odd version":    {with(func(m *cluster.Member) { m.Version = "not_decided" }), OK, Note, OK, "not_decided"},
		"a learner":         {with(func(m *cluster.Member) { m.Learner = true }), Warning, OK, OK, "member promote"},
		"two versions":      {with(func(m *cluster.Member) { m.Version = "3.6.12" }), OK, Warning, OK, "3.6.11, 3.6.12"},
		"full":              {with(func(m *cluster.Member) { m.NoSpace = true }), OK, OK, Failure, "alarm disarm"},
		"half full":         {with(func(m *cluster.Member) { m.DatabaseBytes = 4 << 30 }), OK, OK, Warning, "defrag"},
		"the default quota": {with(func(m *cluster.Member) { m.DatabaseBytes, m.QuotaBytes = 1<<30-1, cluster.DefaultQuotaBytes }), OK, OK, Note, "default quota"},
		"no quota":          {with(func(m *cluster.Member) { m.QuotaBytes = 0 }), OK, OK, Note, "assumes"},
	} {
		all := []Finding{judgeMembers(c.members), judgeVersions(c.members), judgeEtcdSpace(c.members)}
		text := ""
		for i, id := range []string{"etcd", "etcd.version", "etcd.space"} {
			want(t, what, all[i], id, []Status{c.member, c.versions, c.space}[i])
			text += all[i].Found + all[i].Needed + all[i].Fix
		}
		if !strings.Contains(text, c.says) {
			t.Errorf("%s: %s", what, text)
		}
	}
	none := []cluster.Member{{Err: errors.New("refused")}}
	want(t, "none answers", judgeEtcdSpace(none), "etcd.space", Note)
}

func TestEtcd(t *testing.T) {
	m := etcd.Start(t, etcd.Options{Members: 1})
	config := cluster.Config{Endpoints: m.Endpoints(), Prefix: "/kv3fs"}
	all := checkEtcd(t.Context(), config)
	want(t, "one member", byID(t, all, "etcd"), "etcd", Warning)
	want(t, "its space", byID(t, all, "etcd.space"), "etcd.space", Note)
	if f := byID(t, all, "etcd.version"); !strings.Contains(f.Found, "etcd 3.") {
		t.Errorf("%+v", f)
	}
	m.Kill(0)
	want(t, "a dead one", checkEtcd(t.Context(), config)[0], "etcd", Failure)
}
