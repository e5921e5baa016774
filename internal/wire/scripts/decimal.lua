-- Returns the text of n, a whole number from 0 on. Two integers are written in half the time that %.0f takes, or
-- %.17g, which is how a command gets a number: that is as long as many commands take.
local function decimal(n)
  local low = n % 10000000
  if n == low then
    return string.format('%d', n)
  end
  return string.format('%d%07d', (n - low) / 10000000, low)
end
