package keys

import "testing"

// In CPython, hash((21, 122872550421973035)) is 1546275796, where the sum would be -1,
// and hash(-1) is -2.
func TestPythonHasNoMinusOne(t *testing.T) {
	pair := newPyTuple()
	pair.add(21)
	pair.add(122872550421973035)
	if got := pair.sum(); got != 1546275796 {
		t.Errorf("the tuple's hash is %d", got)
	}
	if got := pyHash(-1); got != -2 {
		t.Errorf("the hash of -1 is %d", got)
	}
}
