package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/cluster"
)

// checkEtcd examines the etcd of a page service that many hosts share.
func checkEtcd(ctx context.Context, config cluster.Config) []Finding {
	config.HostID = "doctor" // it becomes no candidate
	c, err := cluster.Open(ctx, config)
	if err != nil {
		return []Finding{{ID: "etcd", Status: Failure, Found: err.Error(), Needed: "an etcd most of whose members answer, for the index of the page service"}}
	}
	members := c.Space(ctx)
	if err := c.Close(); err != nil {
		return []Finding{unknown("etcd", "how etcd is", err)}
	}
	return []Finding{judgeMembers(members), judgeVersions(members), judgeEtcdSpace(members)}
}

func answering(members []cluster.Member) []cluster.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m cluster.Member) bool { return m.Err != nil })
}

func judgeMembers(members []cluster.Member) Finding {
	const id = "etcd"
	well := answering(members)
	f := Finding{ID: id, Status: Warning, Found: fmt.Sprintf("%d of %s answer", len(well), plural(len(members), "member"))}
	for _, m := range members {
		switch {
		case m.Err != nil:
			f.Found += fmt.Sprintf("; %s: %v", m.Endpoint, m.Err)
			f.Needed = "all of them: the page service stops with most of them"
		case m.Corrupt:
			return Finding{ID: id, Status: Failure, Found: m.Endpoint + " has raised the alarm CORRUPT: its data differs from the others'", Needed: "members that agree: remove that one and add it anew (etcdctl member remove, member add)"}
		}
	}
	voting := len(members)
	for _, m := range well {
		if m.Learner {
			voting--
			f.Found += "; " + m.Endpoint + " is a learner: it answers no requests"
			f.Needed = "members that vote: etcdctl member promote, once it has caught up"
		}
	}
	if f.Needed == "" && voting < 3 {
		f.Needed = "three members or five, all of them named: with fewer, the loss of one stops the page service"
	}
	if f.Needed == "" {
		return ok(id, "all %s answer", plural(len(members), "member"))
	}
	return f
}

func judgeVersions(members []cluster.Member) Finding {
	const id = "etcd.version"
	var versions, faults []string
	for _, m := range answering(members) {
		if slices.Contains(versions, m.Version) {
			continue
		}
		versions = append(versions, m.Version)
		known, err := cluster.KnownFaults(m.Version)
		if err != nil {
			return unknown(id, "the version of etcd", err)
		}
		for _, fault := range known {
			if !slices.Contains(faults, fault) {
				faults = append(faults, fault)
			}
		}
	}
	if len(faults) == 0 && len(versions) > 1 {
		return Finding{ID: id, Status: Warning, Found: "members of different versions: " + strings.Join(versions, ", "), Needed: "one version; several are for the time of an upgrade only"}
	}
	if len(faults) == 0 {
		return ok(id, "etcd %s", strings.Join(versions, ", "))
	}
	return Finding{
		ID: id, Status: Warning, Found: fmt.Sprintf("etcd %s has known faults: %s", strings.Join(versions, ", "), strings.Join(faults, "; ")),
		Needed: "etcd " + cluster.Recommended + ", for whoever uses this etcd: kv3fs relies on nothing of that but the rights of users",
	}
}

// The page service begins to drop what it needs no more at a half of the quota, and takes no new keys above 70 %.
const fullShare = 0.5

func judgeEtcdSpace(members []cluster.Member) Finding {
	const id = "etcd.space"
	var fullest cluster.Member
	share := -1.0
	for _, m := range answering(members) {
		if m.NoSpace {
			return Finding{
				ID: id, Status: Failure, Found: m.Endpoint + " has raised the alarm NOSPACE: etcd takes no writes and elects no new leader of kv3fs",
				Needed: "space: a larger --quota-backend-bytes, or delete and compact, then defragment each member; then disarm the alarm",
				Fix:    "etcdctl --endpoints " + m.Endpoint + " defrag && etcdctl --endpoints " + m.Endpoint + " alarm disarm",
			}
		}
		quota := m.QuotaBytes
		if quota == 0 {
			quota = cluster.DefaultQuotaBytes
		}
		if s := float64(m.DatabaseBytes) / float64(quota); s > share {
			share, fullest = s, m
		}
	}
	size := func(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }
	switch {
	case share < 0:
		return Finding{ID: id, Status: Note, Found: "no member says how full it is"}
	case fullest.QuotaBytes == 0:
		return Finding{ID: id, Status: Note, Found: fmt.Sprintf("%s of data, %s of it in use; etcd does not say its quota", size(fullest.DatabaseBytes), size(fullest.InUseBytes)), Needed: "kv3fs assumes etcd's default of " + size(cluster.DefaultQuotaBytes)}
	case share >= fullShare:
		return Finding{
			ID: id, Status: Warning, Found: fmt.Sprintf("%s has %s of data, %s of it in use, with a quota of %s", fullest.Endpoint, size(fullest.DatabaseBytes), size(fullest.InUseBytes), size(fullest.QuotaBytes)),
			Needed: "room: etcd takes no writes once its data reach the quota. Defragment one member after another, which gives back what is not in use, or raise --quota-backend-bytes",
			Fix:    "etcdctl --endpoints " + fullest.Endpoint + " defrag",
		}
	case fullest.QuotaBytes == cluster.DefaultQuotaBytes:
		return Finding{
			ID: id, Status: Note, Found: fmt.Sprintf("%s of data, with etcd's default quota of %s", size(fullest.DatabaseBytes), size(fullest.QuotaBytes)),
			Needed: "nothing for some ten million keys; 8 GiB is the most that etcd's makers suggest",
			Fix:    "--quota-backend-bytes 8589934592",
		}
	}
	return ok(id, "%s of data, with a quota of %s", size(fullest.DatabaseBytes), size(fullest.QuotaBytes))
}
