package classify

import (
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// Marks say which names are in a directory that tell whose its files are.
type Marks uint8

const (
	// DotTemp: a directory .temp, as UCM's Ds3fs store has it.
	DotTemp Marks = 1 << iota
	// OwnLogs: logs of kv3fs's stores.
	OwnLogs
	// LMCacheData: a file that may be one of LMCache's.
	LMCacheData
)

// MarkOf returns the mark that a name in a directory is, 0 for most.
func MarkOf(name string) Marks {
	switch {
	case name == tempOfDs3fs:
		return DotTemp
	case kv3fs.IsLogDir(name):
		return OwnLogs
	case strings.HasSuffix(name, ".data") && strings.Count(name, "@") >= 3:
		return LMCacheData
	}
	return 0
}

// MarkNames are the names that a caller which reads no directory may look for instead.
func MarkNames() []string { return []string{tempOfDs3fs, kv3fs.SumsDir, kv3fs.ItemsDir} }

// Context is what lies around a file. The zero value says that nothing is known of it.
type Context struct {
	// Here are the marks of the file's own directory, Above those of the one above that.
	Here, Above Marks

	// Stated is whose files are below the root of the path, if the operator or an engine's
	// configuration says so: Ds3fs, Posix or KVCM, whose names look like others'. What is certainly
	// another owner's remains that one's.
	Stated Owner

	// Temporaries: the file's directory is one that LMCache is configured to write its temporary
	// files to, under the names that they will have.
	Temporaries bool
}
