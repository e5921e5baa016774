package redlock_test

// helperVariable makes the test binary do something else than testing.
const helperVariable = "HOLDFAST_TEST_HELPER"

func helper(role string) int { return 2 }
