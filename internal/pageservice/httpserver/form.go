package httpserver

// form says which fields a body may have. Others are read over.
type form map[string]field

// field is how a field is read: by the general parser, and by the scanner, which may
// give up; without it, a body with this field is the parser's.
type field struct {
	read func(*request) error
	scan func(*request) bool
}

var (
	rankField     = field{readRank, scanRank}
	keysField     = field{readKeys, scanKeys}
	pairsField    = field{readPairs, scanPairs}
	writtenField  = field{readWritten, scanWritten}
	releaseField  = field{readRelease, scanRelease}
	poolField     = field{readPool, scanPool}
	roleField     = field{read: readRole}
	numPagesField = field{read: readNumPages}
)
