package host

import "strings"

// Reach says who can change the files of a file system.
type Reach int

const (
	// OneHost: this one alone.
	OneHost Reach = iota
	// ManyHosts: others can have it mounted at the same time.
	ManyHosts
	// AnyHosts: it is behind FUSE and not in the list.
	AnyHosts
)

// FileSystem is a kind of file system.
type FileSystem struct {
	Name  string // as its makers write it
	Reach Reach
	// Visible says that what a direct write has written is on the servers once it returns, so that
	// every other host reads it. Elsewhere that takes an fsync.
	Visible bool
}

// Names of file systems that are treated specially.
const (
	GlusterFS = "GlusterFS"
	CephFS    = "CephFS" // the kernel's client
	NFS       = "NFS"
)

// fuseMagic is the f_type of every FUSE file system, whatever is behind it.
const fuseMagic = 0x65735546

// fileSystems are the kinds that are recognised. types are mountinfo's, magic is the f_type of statfs(2),
// 0 where a type alone tells.
var fileSystems = [...]struct {
	types string // separated by spaces
	magic int64
	FileSystem
}{
	{"fuse.glusterfs glusterfs", fuseMagic, FileSystem{GlusterFS, ManyHosts, false}}, // unless GlusterWritesThrough
	{"fuse.ceph-fuse fuse.ceph", fuseMagic, FileSystem{CephFS + " (ceph-fuse)", ManyHosts, true}},
	{"ceph", 0x00c36400, FileSystem{CephFS, ManyHosts, true}},
	{"fuse.juicefs", fuseMagic, FileSystem{"JuiceFS", ManyHosts, false}},
	{"fuse.sshfs", fuseMagic, FileSystem{"sshfs", ManyHosts, false}},
	{HF3FSType, fuseMagic, FileSystem{"3FS", ManyHosts, false}},
	{"nfs nfs4", 0x6969, FileSystem{NFS, ManyHosts, true}},
	{"lustre", 0x0bd00bd0, FileSystem{"Lustre", ManyHosts, true}},
	{"gpfs", 0x47504653, FileSystem{"GPFS", ManyHosts, false}},
	{"beegfs", 0x19830326, FileSystem{"BeeGFS", ManyHosts, false}},
	{"cifs smb3", 0xff534d42, FileSystem{"SMB", ManyHosts, false}},
	{"smb2", 0xfe534d42, FileSystem{"SMB", ManyHosts, false}},
	{"9p", 0x01021997, FileSystem{"9P", ManyHosts, false}},
	{"afs", 0x5346414f, FileSystem{"AFS", ManyHosts, false}},
	{"afs", 0x6b414653, FileSystem{"AFS", ManyHosts, false}}, // the kernel's own
	{"coda", 0x73757245, FileSystem{"Coda", ManyHosts, false}},
	{"pvfs2", 0x20030528, FileSystem{"OrangeFS", ManyHosts, false}},
	{"vboxsf", 0x786f4256, FileSystem{"a folder of VirtualBox's host", ManyHosts, false}},
	{"wekafs", 0, FileSystem{"WekaFS", ManyHosts, false}},
	{"gfs2", 0x01161970, FileSystem{"GFS2", ManyHosts, false}},
	{"ocfs2", 0x7461636f, FileSystem{"OCFS2", ManyHosts, false}},
	{"ext2 ext3 ext4", 0xef53, FileSystem{"ext4", OneHost, true}},
	{"xfs", 0x58465342, FileSystem{"XFS", OneHost, true}},
	{"btrfs", 0x9123683e, FileSystem{"Btrfs", OneHost, true}},
	{"f2fs", 0xf2f52010, FileSystem{"F2FS", OneHost, true}},
	{"zfs", 0x2fc12fc1, FileSystem{"ZFS", OneHost, true}},
	{"bcachefs", 0xca451a4e, FileSystem{"bcachefs", OneHost, true}},
	{"tmpfs", 0x01021994, FileSystem{"tmpfs", OneHost, true}},
	{"ramfs", 0x858458f6, FileSystem{"ramfs", OneHost, true}},
	{"overlay", 0x794c7630, FileSystem{"overlay", OneHost, true}},
	// What such a file system shows lies elsewhere on this host: its user knows if others change that.
	{"fuse.fuse-overlayfs fuse.mergerfs fuse.gocryptfs fuse.bindfs fuse.unionfs", fuseMagic, FileSystem{"directories through FUSE", OneHost, false}},
	{"fuseblk", fuseMagic, FileSystem{"a disk through FUSE", OneHost, true}},
}

// Recognise returns the kind of a file system with a type of mountinfo and an f_type of statfs(2). Where the
// two contradict each other, as they do if the mount is hidden, f_type holds, unless it is unknown and the type is one
// of many hosts. Without a type ("") or an f_type (0) the other one decides. A kernel's own file system that is not
// known is taken for a local one.
func Recognise(kind string, magic int64) FileSystem {
	isFUSE := kind == "fuse" || strings.HasPrefix(kind, "fuse.")
	byMagic := FileSystem{Name: kind, Reach: OneHost, Visible: true}
	if magic == fuseMagic || magic == 0 && isFUSE {
		byMagic = FileSystem{Name: "a FUSE file system", Reach: AnyHosts}
		if isFUSE && kind != "fuse" {
			byMagic.Name = kind
		}
	}
	if byMagic.Name == "" {
		byMagic.Name = "a file system of unknown type"
	}
	var byType FileSystem
	known := false // the magic
	for _, f := range fileSystems {
		if kind != "" && hasWord(f.types, kind) {
			if magic == 0 || f.magic == 0 || f.magic == magic {
				return f.FileSystem
			}
			byType = f.FileSystem
		}
		if magic != 0 && f.magic == magic {
			known = true
			if magic != fuseMagic {
				byMagic = f.FileSystem
			}
		}
	}
	if !known && byType.Reach == ManyHosts {
		return byType
	}
	return byMagic
}

func hasWord(words, word string) bool {
	for w := range strings.FieldsSeq(words) {
		if w == word {
			return true
		}
	}
	return false
}

// GlusterWritesThrough reports whether a client of GlusterFS with that volume file sends direct writes to the servers
// before it answers: it has no write-behind, or one that leaves direct writes alone.
func GlusterWritesThrough(volfile string) bool {
	behind, known := false, false
	for line := range strings.Lines(volfile) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "volume":
			behind, known = false, true
		case f[0] == "type" && len(f) == 2:
			behind = f[1] == "performance/write-behind"
		case f[0] == "option" && len(f) == 3 && behind && strings.EqualFold(f[1], "strict-O_DIRECT"):
			switch strings.ToLower(f[2]) {
			case "on", "yes", "true", "enable", "1":
				behind = false
			}
		case f[0] == "end-volume" && behind:
			return false
		}
	}
	return known && !behind
}
