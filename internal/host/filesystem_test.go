package host

import "testing"

const stores = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
63 22 0:43 / /mnt/gv rw,relatime - fuse.glusterfs 10.99.0.1:gv rw,user_id=0,group_id=0,default_permissions,allow_other,max_read=131072
64 22 0:44 / /mnt/cephfuse rw,nosuid,nodev,relatime - fuse.ceph-fuse ceph-fuse rw,user_id=0,group_id=0,allow_other
65 22 0:45 / /mnt/ceph rw,relatime - ceph 10.0.0.1:6789:/ rw,name=admin,secret=<hidden>,acl
66 22 0:46 / /mnt/jfs rw,relatime - fuse.juicefs JuiceFS:jfs rw,user_id=0,group_id=0,default_permissions,allow_other
67 22 0:47 / /mnt/ssh rw,relatime - fuse.sshfs user@host:/srv rw,user_id=0,group_id=0
68 22 0:48 / /mnt/3fs rw,relatime - fuse.hf3fs hf3fs.stage rw,user_id=0,group_id=0,allow_other
69 22 0:49 / /mnt/nfs rw,relatime - nfs4 server:/export rw,vers=4.2,rsize=1048576
70 22 0:50 / /mnt/lustre rw,flock - lustre 10.0.0.1@tcp:/scratch rw,flock
71 22 0:51 / /mnt/gpfs rw,relatime - gpfs fs0 rw
72 22 0:52 / /mnt/beegfs rw,relatime - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf
73 22 0:53 / /mnt/smb rw,relatime - cifs //server/share rw,vers=3.1.1
74 22 0:54 / /mnt/9p rw,relatime - 9p share rw,trans=virtio
75 22 0:55 / /mnt/own rw,relatime - fuse.own own rw
76 22 8:17 / /mnt/ntfs rw,relatime - fuseblk /dev/sdb1 rw
77 22 0:56 / /mnt/with\040space rw,relatime - nfs server:/a\040b rw
78 22 8:33 / /mnt/disk rw,relatime - xfs /dev/sdc1 rw
79 78 0:57 / /dev/shm rw - tmpfs tmpfs rw
`

func TestRecognise(t *testing.T) {
	mounts := parseMountinfo(stores)
	for path, want := range map[string]FileSystem{
		"/var/lib/kv3fs":         {"ext4", OneHost, true},
		"/mnt/gv/cache":          {"GlusterFS", ManyHosts, false},
		"/mnt/cephfuse":          {"CephFS (ceph-fuse)", ManyHosts, true},
		"/mnt/ceph/cache":        {"CephFS", ManyHosts, true},
		"/mnt/jfs":               {"JuiceFS", ManyHosts, false},
		"/mnt/ssh":               {"sshfs", ManyHosts, false},
		"/mnt/3fs/cache":         {"3FS", ManyHosts, false},
		"/mnt/nfs":               {"NFS", ManyHosts, true},
		"/mnt/lustre/a":          {"Lustre", ManyHosts, true},
		"/mnt/gpfs":              {"GPFS", ManyHosts, false},
		"/mnt/beegfs":            {"BeeGFS", ManyHosts, false},
		"/mnt/smb":               {"SMB", ManyHosts, false},
		"/mnt/9p":                {"9P", ManyHosts, false},
		"/mnt/own":               {"fuse.own", AnyHosts, false},
		"/mnt/ntfs":              {"a disk through FUSE", OneHost, true},
		"/mnt/with space/kv3fs":  {"NFS", ManyHosts, true},
		"/mnt/disk":              {"XFS", OneHost, true},
		"/dev/shm/kv3fs-data":    {"tmpfs", OneHost, true},
		"/mnt/gvolume/not/below": {"ext4", OneHost, true},
	} {
		m, _ := Holding(mounts, path)
		if got := Recognise(m.Type, 0); got != want {
			t.Errorf("%s, type %s: %+v, want %+v", path, m.Type, got, want)
		}
	}
	for _, c := range []struct {
		kind  string
		magic int64
		want  string
		reach Reach
	}{
		{"", 0xef53, "ext4", OneHost},
		{"", 0x6969, "NFS", ManyHosts},
		{"", fuseMagic, "a FUSE file system", AnyHosts},
		{"fuse", fuseMagic, "a FUSE file system", AnyHosts},
		{"fuse.glusterfs", fuseMagic, "GlusterFS", ManyHosts},
		{"ext4", fuseMagic, "a FUSE file system", AnyHosts}, // the mount is hidden
		{"fuse.glusterfs", 0xef53, "ext4", OneHost},
		{"ext4", 0x6969, "NFS", ManyHosts},
		{"newfs", 0x12345, "newfs", OneHost},
		{"wekafs", 0x12345, "WekaFS", ManyHosts},
		{"fuse.mergerfs", fuseMagic, "directories through FUSE", OneHost},
		{"fuse.fuse-overlayfs", 0, "directories through FUSE", OneHost},
		{"afs", 0x5346414f, "AFS", ManyHosts},
		{"afs", 0x6b414653, "AFS", ManyHosts},
		{"", 0x6b414653, "AFS", ManyHosts},
		{"pvfs2", 0x20030528, "OrangeFS", ManyHosts},
		{"vboxsf", 0x786f4256, "a folder of VirtualBox's host", ManyHosts},
		{"coda", 0x73757245, "Coda", ManyHosts},
		{"nfs4", 0x12345, "NFS", ManyHosts}, // what its f_type has become
		{"nfs4", fuseMagic, "a FUSE file system", AnyHosts},
		{"xfs", 0x12345, "xfs", OneHost},
		{"", 0, "a file system of unknown type", OneHost},
	} {
		if got := Recognise(c.kind, c.magic); got.Name != c.want || got.Reach != c.reach {
			t.Errorf("%q, %#x: %+v, want %s", c.kind, c.magic, got, c.want)
		}
	}
}

const volfile = `volume gv-client-0
    type protocol/client
    option remote-subvolume /bricks/1
end-volume

volume gv-write-behind
    type performance/write-behind
    subvolumes gv-client-0
end-volume

volume gv-open-behind
    type performance/open-behind
    option strict-O_DIRECT on
    subvolumes gv-write-behind
end-volume
`

const volfileStrict = `volume gv-write-behind
    type performance/write-behind
    option strict-O_DIRECT on
    subvolumes gv-utime
end-volume

volume gv
    type debug/io-stats
end-volume
`

const volfileWithout = `volume gv-utime
    type features/utime
end-volume
`

func TestGlusterWritesThrough(t *testing.T) {
	for text, want := range map[string]bool{
		volfile:                  false,
		volfileStrict:            true,
		volfileWithout:           true,
		"":                       false,
		"volume a\n":             true,
		volfileStrict + volfile:  false,
		volfileWithout + volfile: false,
		volfile[:150]:            false, // cut short
	} {
		if got := GlusterWritesThrough(text); got != want {
			t.Errorf("%v, want %v, for:\n%s", got, want, text)
		}
	}
}

func FuzzRecognise(f *testing.F) {
	f.Add(stores, "/mnt/gv/cache", int64(fuseMagic))
	f.Add(stores, "/", int64(0xef53))
	f.Add("1 0 0:1 / / rw - fuse.\\040 a", "/", int64(0))
	f.Fuzz(func(t *testing.T, text, path string, magic int64) {
		m, _ := Holding(parseMountinfo(text), path)
		got := Recognise(m.Type, magic)
		if got.Name == "" {
			t.Fatalf("%q, %#x has no name", m.Type, magic)
		}
		if got.Reach == AnyHosts && got.Visible {
			t.Fatalf("%q, %#x: nothing is known of %+v", m.Type, magic, got)
		}
	})
}

func FuzzGlusterWritesThrough(f *testing.F) {
	for _, text := range []string{volfile, volfileStrict, volfileWithout} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// A write-behind with no options at the end of any file must be seen.
		if GlusterWritesThrough(text + "\nend-volume\nvolume x\ntype performance/write-behind\nend-volume\n") {
			t.Fatalf("write-behind was missed after %q", text)
		}
	})
}
