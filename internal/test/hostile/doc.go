// Package hostile runs functions of a test binary as other users, for tests of what one
// user can do to another or to the daemon. A test function cannot change its own user: Go
// has no control over which thread runs it, and root's rights would come back. So the
// binary starts itself again.
//
// A package that uses it has a table of programs:
//
//	func TestMain(m *testing.M) { os.Exit(hostile.Main(m, programs())) }
//
//	func programs() map[string]hostile.Program {
//		return map[string]hostile.Program{"many-files": manyFiles}
//	}
//
//	func manyFiles(s *hostile.Self) error {
//		var a struct{ Mount string }
//		if err := s.Args(&a); err != nil {
//			return err
//		}
//		... open files ...
//		s.Report(n)         // the test's Await returns it
//		<-s.Stopped()       // hold them until the test has seen enough
//		return nil
//	}
//
// and a test runs them:
//
//	attacker := hostile.Start(t, hostile.NewUser(t), "many-files", args)
//	attacker.Await(&n)
//	... what do others see? ...
//	attacker.Stop()
//
// Every user is new: no other test, and no other run at the same time, has its id. When the
// test ends, the processes of its users are killed and their objects in /dev/shm removed.
//
// Ring drives a ring by hand after the specification, without the checks of a client.
package hostile
