package simfleet

import "testing"

// Faults are chosen by name, and their reasons are shown to people.
func TestFaults(t *testing.T) {
	seen := map[string]bool{}
	for _, fault := range Faults() {
		if fault.Name == "" || fault.About == "" || fault.Apply == nil && fault.Beside == nil {
			t.Errorf("fault %q, %q does nothing or says nothing", fault.Name, fault.About)
		}
		if seen[fault.Name] {
			t.Errorf("there are two faults %q", fault.Name)
		}
		seen[fault.Name] = true

		found, err := FaultNamed(fault.Name)
		if err != nil || found.About != fault.About {
			t.Errorf("found %q under the name of %q: %v", found.About, fault.Name, err)
		}
	}
	if _, err := FaultNamed("none such"); err == nil {
		t.Error("found a fault that does not exist")
	}
}
