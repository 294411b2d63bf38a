package classify

import (
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/layout/kvcm"
	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
)

// Classify says what the file at a path is.
func Classify(path string, in Context) File {
	if !isPath(path) {
		return File{}
	}
	p := split(path)
	if strings.Contains(path, "kv3fs") {
		if f, ok := p.own(in); ok {
			return f
		}
	}
	if p.name[0] == '-' || isHexDigit(p.name[0]) {
		if f, ok := p.numbered(in); ok {
			return f
		}
	}
	switch name := p.name; {
	case strings.HasPrefix(name, vllmPrefix):
		if isNumber(name[len(vllmPrefix):]) {
			return p.pageFile(VLLM, name[len(vllmPrefix):])
		}
	case strings.HasPrefix(name, mooncakePrefix):
		if digits, ok := strings.CutSuffix(name[len(mooncakePrefix):], lmcache.Suffix); ok && isShard(digits) {
			return p.file(File{Owner: Mooncake, Age: NoAge, Delete: Never, Grace: FinalGrace, Root: p.dir})
		}
	case kv3fs.IsSegment(name):
		return p.file(File{Owner: Segments, Age: NoAge, Delete: Never, Grace: FinalGrace, Root: p.dir})
	}
	if strings.HasSuffix(p.name, lmcache.Suffix) || strings.HasSuffix(p.name, lmcache.TempSuffix) {
		if f, ok := p.lmcache(in); ok {
			return f
		}
	}
	if strings.Contains(p.name, gds.DataSuffix) || strings.Contains(p.name, gds.WekaSuffix) {
		if f, ok := p.gds(); ok {
			return f
		}
	}
	if rank, ok := sglangRank(p.name); ok {
		return p.pageFile(SGLang, rank)
	}
	return File{}
}

// HeadBytes is how many of the first bytes of a file ByHead wants.
const HeadBytes = len(kv3fs.PageFileMagic)

// ByHead is Classify for a file that Classify does not know, by its first bytes: some files have
// names that their users choose.
func ByHead(path string, head []byte) File {
	if !isPath(path) || !strings.HasPrefix(string(head), kv3fs.PageFileMagic) {
		return File{}
	}
	p := split(path)
	return p.file(File{Owner: Pages, Age: NoAge, Delete: Never, Grace: FinalGrace, Root: p.dir})
}

// place is a path taken apart.
type place struct {
	path   string
	name   string // of the file
	dir    string // all before it, "" where there is none
	parent string // the last name of dir
	above  string // all of dir before parent
}

func split(path string) place {
	p := place{path: path}
	p.dir, p.name = cutLast(path)
	p.above, p.parent = cutLast(p.dir)
	return p
}

// cutLast separates the last name of a path from the ones before.
func cutLast(path string) (before, last string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// isPath reports whether all names in a path are names.
func isPath(path string) bool {
	for rest, more := path, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		if name == "" || name == "." || name == ".." {
			return false
		}
	}
	return strings.IndexByte(path, 0) < 0
}

// file completes a File of the path: an entry by itself.
func (p place) file(f File) File {
	f.Part = Data
	f.Entry = p.path
	return f
}

// temporary is file for a temporary file.
func (p place) temporary(f File) File {
	f.Temp, f.Delete, f.Age, f.Grace, f.Forget = true, WhenIdle, ByWrite, max(f.Grace, TempGrace), false
	return p.file(f)
}

const (
	vllmPrefix     = "hf3fs_vllm_data_file_"
	mooncakePrefix = "dfs_shard_"
	sglangSuffix   = ".bin"
	tempOfDs3fs    = ".temp"
	noDigitsDir    = "data" // of UCM's Posix store without digits
	mostDirDigits  = 5
)

func (p place) pageFile(owner Owner, rank string) File {
	return p.file(File{Owner: owner, Age: NoAge, Delete: Never, Grace: FinalGrace, Root: p.dir, Rank: toInt(rank)})
}

// isShard reports whether digits are those of a shard's number, which has two at least.
func isShard(digits string) bool {
	return len(digits) == 2 && isDigits(digits) || len(digits) > 2 && len(digits) <= 9 && isDigits(digits)
}

// sglangRank returns the rank in the name of a page file: <prefix>.<rank>.bin or one with a pool
// behind it.
func sglangRank(name string) (string, bool) {
	at := strings.LastIndex(name, sglangSuffix)
	if at < 0 {
		return "", false
	}
	if pool := name[at+len(sglangSuffix):]; pool != "" && (pool[0] != '.' || !isWord(pool[1:])) {
		return "", false
	}
	dot := strings.LastIndexByte(name[:at], '.')
	if dot < 0 {
		return "", false
	}
	rank := name[dot+1 : at]
	return rank, isNumber(rank)
}

// own classifies the files that kv3fs makes, but for blocks in an engine's layout.
func (p place) own(in Context) (File, bool) {
	for at := 0; at < len(p.dir); {
		end := strings.IndexByte(p.dir[at:], '/')
		if end < 0 {
			end = len(p.dir) - at
		}
		name, root := p.dir[at:at+end], p.dir[:max(0, at-1)]
		switch {
		case !strings.Contains(name, "kv3fs"):
		case name == kv3fs.StateDir, name == kv3fs.KeepDir:
			return p.file(File{Owner: Daemon, Age: NoAge, Delete: Never, Grace: FinalGrace, Root: root}), true
		case kv3fs.IsScratchDir(name):
			return p.temporary(File{Owner: Bench, Grace: ScratchGrace, Root: p.dir[:at+end]}), true
		}
		at += end + 1
	}
	if _, aside := kv3fs.IsAside(p.name); aside {
		return p.file(File{Owner: BlockStore, Delete: AnyTime, Grace: FinalGrace, Root: p.dir}), true
	}
	switch {
	case kv3fs.IsLogDir(p.parent):
		return p.file(File{Owner: Checksums, Age: NoAge, Delete: Never, Grace: FinalGrace, Root: p.above}), true
	case p.parent == kv3fs.QuarantineDir && kv3fs.IsQuarantined(p.name):
		return p.file(File{Owner: BlockStore, Delete: AnyTime, Grace: FinalGrace, Root: p.above, Key: p.name[:kv3fs.KeyDigits]}), true
	case p.parent == kv3fs.SpareDir:
		return p.spare(), true
	case p.parent == kv3fs.TempDir && kv3fs.IsTemporary(p.name):
		return p.temporary(File{Owner: BlockStore, Root: p.above, Key: p.name[:kv3fs.KeyDigits]}), true
	case kv3fs.IsProbe(p.name):
		return p.temporary(File{Owner: Bench, Root: p.dir}), true
	}
	return File{}, false
}

// spare classifies a block that is in kv3fs.SpareDir under the name of its file. Only kv3fs's
// stores look there, so it has no second part, and its directory says nothing.
func (p place) spare() File {
	return p.file(File{Owner: BlockStore, Delete: AnyTime, Grace: FinalGrace, Root: p.above, Forget: true})
}

// lmcache classifies chunks and objects of LMCache, and temporary files.
func (p place) lmcache(in Context) (File, bool) {
	file, temp := p.name, false
	if stem, ok := strings.CutSuffix(file, lmcache.TempSuffix); ok {
		file, temp = stem+lmcache.Suffix, true
	}
	f := File{Delete: AnyTime, Forget: true, Root: p.dir, Blocks: 1}
	if n, ok := lmcache.ParseName(file); ok {
		f.Owner, f.Grace = LMCache, FinalGrace
		f.Model, f.WorldSize, f.Rank, f.DType, f.Key = n.Model, n.WorldSize, n.WorkerID, n.DType, n.Hash
	} else if o, ok := lmcache.ParseObjectName(file); ok {
		f.Owner, f.Grace, f.Root = LMCacheObject, DirectGrace, p.objectRoot(o.Hash)
		f.Model, f.WorldSize, f.Rank, f.Key = o.Model, int(o.Rank>>24), int(o.Rank>>16&0xff), o.Hash
	} else {
		return File{}, false
	}
	if temp || in.Temporaries || in.Above&LMCacheData != 0 && isTempDir(p.parent) {
		return p.temporary(f), true
	}
	return p.file(f), true
}

// objectRoot returns the base path of an object with a hash: the adapter fs_native may have it in
// up to two directories below.
func (p place) objectRoot(hash string) string {
	root, two := cutLast(p.dir)
	if two != hash[2:4] && two != hash[:2] {
		return p.dir
	}
	if above, one := cutLast(root); one == hash[:2] && two == hash[2:4] {
		return above
	}
	if two == hash[:2] {
		return root
	}
	return p.dir
}

// isTempDir reports whether a directory has a name that people give to one of temporary files.
func isTempDir(name string) bool {
	return name == "tmp" || name == "temp" || name == ".tmp" || name == ".temp"
}

// gds classifies the files of LMCache's GDS backend.
func (p place) gds() (File, bool) {
	n, ok := gds.ParseName(p.name)
	if !ok {
		return File{}, false
	}
	above, level := cutLast(p.above)
	two := strings.TrimPrefix(p.dir[len(above):], "/")
	f := File{Owner: GDS, Delete: SideFirst, Grace: FinalGrace, Forget: true, Blocks: 1}
	switch {
	case p.above != "" && level != "" && n.In(two):
		f.Root = above
	case p.parent != "" && n.In(p.parent):
		f.Root = p.above
	default:
		return File{}, false
	}
	if key, ok := lmcache.ParseName(strings.ReplaceAll(n.Key, "/", "-SEP-") + lmcache.Suffix); ok {
		f.Model, f.WorldSize, f.Rank, f.DType, f.Key = key.Model, key.WorldSize, key.WorkerID, key.DType, key.Hash
	}
	if n.Temp != "" {
		return p.temporary(f), true
	}
	f = p.file(f)
	if n.Kind == gds.Side {
		f.Part, f.Entry = Side, strings.TrimSuffix(p.path, gds.SideSuffix)
	}
	return f, true
}

// numbered classifies the files whose names are digits: UCM's, RTP-LLM's, KVCM's, those of
// kv3fs's stores in the same directories, and those of replays.
func (p place) numbered(in Context) (File, bool) {
	if len(p.name) >= kv3fs.KeyDigits && isHex(p.name[:kv3fs.KeyDigits]) {
		return p.keyed(in)
	}
	if b, ok := kv3fs.ParseBlock(p.parent, p.name); ok {
		return p.file(File{Owner: Replay, Delete: AnyTime, Grace: FinalGrace, Root: p.above, Rank: b.Rank, Key: p.name[:16], Blocks: 1, sizeBytes: b.SizeBytes}), true
	}
	if i := strings.LastIndexByte(p.above, '/'); kv3fs.IsReplayProcess(p.parent) && p.above[i+1:] == kv3fs.ReplayTempDir {
		root, _ := cutLast(p.above)
		return p.temporary(File{Owner: Replay, Grace: ScratchGrace, Root: root}), true
	}
	if f, ok := p.rtpllm(); ok {
		return f, true
	}
	return p.kvcm(in)
}

// keyed classifies the files whose names begin with a key of 32 digits.
func (p place) keyed(in Context) (File, bool) {
	key, rest := p.name[:kv3fs.KeyDigits], p.name[kv3fs.KeyDigits:]
	f := File{Delete: AnyTime, Grace: FinalGrace, Forget: true, Root: p.above, Key: key, Blocks: 1}
	switch {
	case rest != "" && kv3fs.IsTemporary(p.name):
		if p.parent == tempOfDs3fs {
			f.Owner = Ds3fs
		} else {
			f.Owner, f.Root = BlockStore, p.dir // LMCache's directory of temporary files may be anywhere below its root
		}
		return p.temporary(f), true
	case rest == "" && p.parent == tempOfDs3fs:
		f.Owner = Ds3fs
		return p.temporary(f), true
	case rest != "" && rest != lmcache.TempSuffix:
		return File{}, false
	}
	if rest == "" {
		if f, ok := p.besideItems(f, in); ok {
			return f, true
		}
	}
	if !isDirOf(p.parent, key) {
		return File{}, false
	}
	f.Owner, f.Age = Posix, ByUse
	if rest != "" {
		return p.temporary(f), true
	}
	if len(p.parent) == 2 && (in.Above&DotTemp != 0 || in.Stated == Ds3fs) && in.Stated != Posix {
		f.Owner, f.Age = Ds3fs, ByWrite
	}
	return p.file(f), true
}

// besideItems classifies a block that kv3fs's stores keep beside the files of RTP-LLM or KVCM, under
// a key that is none of theirs. Those directories may have names like UCM's.
func (p place) besideItems(f File, in Context) (File, bool) {
	f.Root = p.dir
	if d, ok := p.rtpllmDir(); ok {
		f.Owner, f.Delete = RTPLLM, SuffixFirst
		f.describe(d, p.dir)
		return p.file(f), true
	}
	if p.isKVCM(in) {
		f.Owner, f.Delete, f.Rank = KVCM, ByService, specRank(p.parent)
		return p.file(f), true
	}
	return File{}, false
}

// isDirOf reports whether UCM's Posix store has the block with a key in a directory of this name.
func isDirOf(dir, key string) bool {
	if dir == noDigitsDir {
		return true
	}
	return dir != "" && len(dir) <= mostDirDigits && dir == key[:len(dir)]
}

// rtpllm classifies the items of RTP-LLM's own tier.
func (p place) rtpllm() (File, bool) {
	if strings.Count(p.dir, "/") < rtpllmDepth {
		return File{}, false
	}
	r, ok := rtpllm.Parse(p.path)
	if !ok || r.Old && r.Biz == rtpllm.Version { // the first name of the path may be missing
		return File{}, false
	}
	f := File{Owner: RTPLLM, Delete: SuffixFirst, Grace: DirectGrace, Root: p.dir, Forget: true, Blocks: 1}
	f.describe(r.Dir, p.dir)
	if r.Old {
		f.Owner, f.Delete, f.LastKey, f.Forget = RTPLLMOld, AnyTime, p.name, false
		return p.file(f), true
	}
	f.Key, f.LastKey, _ = strings.Cut(p.name, "_")
	if r.First != r.Last {
		f.Blocks = 2
	}
	return p.file(f), true
}

// rtpllmDepth is how many slashes a directory of RTP-LLM's has at least, of the older generation.
const rtpllmDepth = 7

// rtpllmDir returns what the directory says if it is one of RTP-LLM's.
func (p place) rtpllmDir() (rtpllm.Dir, bool) {
	if strings.Count(p.dir, "/") < rtpllmDepth+1 {
		return rtpllm.Dir{}, false
	}
	return rtpllm.ParseDir(p.dir)
}

// describe takes over what a directory of RTP-LLM's says.
func (f *File) describe(d rtpllm.Dir, dir string) {
	f.WorldSize, f.Rank = d.TPSize, d.TPRank
	for i := range 7 { // from its last name to the hash of the checkpoint's path
		var name string
		dir, name = cutLast(dir)
		switch i {
		case 3:
			f.DType = name
		case 6:
			f.Model = name
		}
	}
}

// kvcm classifies the files of KVCM.
func (p place) kvcm(in Context) (File, bool) {
	name, ok := kvcm.ParseName(p.name)
	if !ok || !p.isKVCM(in) {
		return File{}, false
	}
	f := File{Owner: KVCM, Delete: ByService, Grace: DirectGrace, Root: p.dir, Forget: true, Blocks: 1, Rank: specRank(p.parent)}
	f.Key, _, _ = strings.Cut(p.name, "_")
	if name.Many {
		f.Blocks = 2
	}
	return p.file(f), true
}

// isKVCM reports whether a directory is one of an instance and a spec: the spec has the name that
// RTP-LLM gives it, or something beside the path says so.
func (p place) isKVCM(in Context) bool {
	if p.above == "" {
		return false
	}
	return isSpec(p.parent) || in.Stated == KVCM || in.Here&OwnLogs != 0
}

// isSpec reports whether a name is that of a spec as RTP-LLM makes it: tp0, tp1_F0.
func isSpec(name string) bool {
	rest, ok := strings.CutPrefix(name, "tp")
	if !ok {
		return false
	}
	rank, group, more := strings.Cut(rest, "_")
	return isNumber(rank) && (!more || group != "")
}

func specRank(spec string) int {
	rank, _, _ := strings.Cut(strings.TrimPrefix(spec, "tp"), "_")
	if !isNumber(rank) {
		return 0
	}
	return toInt(rank)
}

func isDigit(c byte) bool    { return '0' <= c && c <= '9' }
func isHexDigit(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' }

func isHex(s string) bool {
	for i := range len(s) {
		if !isHexDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

func isDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// mostRankDigits keeps ranks far from the bounds of an int.
const mostRankDigits = 6

// isNumber reports whether digits are a rank without leading zeros.
func isNumber(s string) bool {
	return isDigits(s) && len(s) <= mostRankDigits && (len(s) == 1 || s[0] != '0')
}

func toInt(digits string) (n int) {
	for i := range len(digits) {
		n = 10*n + int(digits[i]-'0')
	}
	return n
}

// isWord reports whether a text is a word as SGLang names its pools.
func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isDigit(c) && c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != ""
}

// Parts returns the files of the entry that a file is of, in the order in which to remove them.
func (f File) Parts() []string {
	switch {
	case f.Entry == "":
		return nil
	case f.Owner == GDS && !f.Temp:
		return []string{f.Entry + gds.SideSuffix, f.Entry}
	}
	return []string{f.Entry}
}
