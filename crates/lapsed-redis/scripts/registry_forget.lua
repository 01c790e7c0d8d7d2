-- Removes the records of observed owners that hold nothing any more, so that the record stays as large as the fleet.
-- KEYS  1 the record of observed owners
-- ARGV  1 when the scan began that did not find them, in ms of the server's clock  2... the owners
-- Answers  how many were removed
-- O(owners)
--
-- An owner that another scan has found since then is kept.
local owners = {}
for i = 2, #ARGV do
  owners[#owners + 1] = ARGV[i]
end
local gone = {}
for i, record in ipairs(every('HMGET', KEYS[1], owners)) do
  local _, _, held = read_observed(record)
  if held and held < tonumber(ARGV[1]) then
    gone[#gone + 1] = owners[i]
  end
end
return each('HDEL', KEYS[1], gone)
