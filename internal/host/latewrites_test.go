package host

import (
	"testing"
	"time"
)

const volfileBricks = `volume gv-client-0
    type protocol/client
    option ping-timeout 10
    option remote-host a
end-volume

volume gv-client-1
    type protocol/client
    option ping-timeout 20
end-volume

volume gv
    type debug/io-stats
end-volume
`

// How late a write may come is bounded by what the file system and its mount say; where nothing does, that is not taken for a bound.
func TestLateWritesOf(t *testing.T) {
	for _, c := range []struct {
		kind, options, volfile string
		want                   time.Duration
		bounded                bool
	}{
		{"ext4", "rw", "", 0, true},
		{"fuse.glusterfs", "rw", "", 84 * time.Second, true},
		{"fuse.glusterfs", "rw", volfileBricks, 40 * time.Second, true},
		{"fuse.glusterfs", "rw", volfileBricks + "volume x\ntype protocol/client\nend-volume\n", 84 * time.Second, true},
		{"fuse.glusterfs", "rw", volfileBricks + "volume x\ntype protocol/client\noption ping-timeout 0\nend-volume\n", assumedLate, false},
		{"fuse.glusterfs", "rw", "volume x\ntype protocol/client\noption ping-timeout 9223372036854775807\nend-volume\n", 24 * time.Hour, true},
		{"fuse.ceph-fuse", "rw", "", 315 * time.Second, false},
		{"ceph", "rw,name=a,recover_session=clean", "", 315 * time.Second, false},
		{"ceph", "rw,osd_request_timeout=60", "", 75 * time.Second, true},
		{"ceph", "rw,osd_request_timeout=0", "", 315 * time.Second, false},
		{"nfs4", "rw,hard,proto=tcp,timeo=600,retrans=2", "", assumedLate, false},
		{"nfs4", "rw,soft,proto=tcp,timeo=100,retrans=2", "", time.Minute, true}, // 10 s, 20 s, 30 s
		{"nfs4", "rw,softerr,proto=tcp,timeo=600,retrans=2", "", 6 * time.Minute, true},
		{"nfs", "rw,soft,proto=udp,timeo=11,retrans=3", "", assumedLate, false},
		{"nfs4", "rw,soft,proto=tcp", "", assumedLate, false},
		{"nfs4", "rw,soft,timeo=9223372036854775807,retrans=9223372036854775806", "", 24 * time.Hour, true},
		{"lustre", "rw", "", assumedLate, false},
		{"fuse.own", "rw", "", assumedLate, false},
	} {
		got := LateWritesOf(Recognise(c.kind, 0), Mount{Type: c.kind, Root: "/", Super: c.options}, c.volfile)
		if got.For != c.want || got.Bounded != c.bounded {
			t.Errorf("%s %s: %v, bounded %t; want %v, %t", c.kind, c.options, got.For, got.Bounded, c.want, c.bounded)
		}
	}
}
