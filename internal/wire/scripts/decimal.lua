-- Returns the text of n, a whole number from 0 on. Two integers take half the time of %.0f, or of %.17g, which formats
-- the numbers in the arguments of commands: many commands take no longer than that.
local function decimal(n)
  local low = n % 10000000
  if n == low then
    return string.format('%d', n)
  end
  return string.format('%d%07d', (n - low) / 10000000, low)
end
