-- Findings of drift in a foreign job system: each is checked again, and healed on request. In front of this stands the part of one
-- system (`src/rescue/SYSTEM/drift.lua`), which defines KINDS, by the word that a finding has:
--   types          the type of each of the finding's keys
--   writes         the commands that healing calls, each with the number of its key
--   check(f, at)   nil if it is still so, and then f.mark says what must not change between two looks; f.left, if it is set, is
--                  why it is not healed. Or a code: G it is not so, A somebody who lives has it, N too long to be searched
--   heal(f, at)    removes what points to nothing, or puts the job back
-- KEYS  the keys of each finding
-- ARGV  1 `first`, `again` or `heal`  2 how many findings; then for each: its word, its mark (empty in a first look), the number
--       of its keys, the number of its words, its words
-- Answers  for each finding its code and a text: F it is so (its mark), H healed (its mark), L it is so and is left (why),
--          G, A, N, U a key has another type (which)
-- O(findings * what one check costs), which each part bounds
--
-- A finding's reads come before its first write. `first` and `again` write nothing.
local mode, count = ARGV[1], tonumber(ARGV[2])
local at = { now = clock() }
local findings, next_key, next_word = {}, 1, 3
for n = 1, count do
  local f = { kind = KINDS[ARGV[next_word]], before = ARGV[next_word + 1], keys = {}, words = {}, mark = '' }
  local keys, words = tonumber(ARGV[next_word + 2]), tonumber(ARGV[next_word + 3])
  for i = 1, keys do
    f.keys[i] = KEYS[next_key + i - 1]
  end
  for i = 1, words do
    f.words[i] = ARGV[next_word + 3 + i]
  end
  next_key, next_word = next_key + keys, next_word + 4 + words
  findings[n] = f
end

-- A script is not undone when a command in its middle is refused.
if mode == 'heal' then
  for _, f in ipairs(findings) do
    local wanted = {}
    for i, write in ipairs(f.kind.writes) do
      local command = { unpack(write) }
      -- Of a command with a subcommand the key comes third.
      local place = write.key or 2
      command[place] = f.keys[write[place]]
      wanted[i] = command
    end
    local no = may_write(wanted)
    if no then
      return no
    end
  end
end

local function unusable(f)
  for i, key in ipairs(f.keys) do
    local kind = redis.call('TYPE', key)['ok']
    if kind ~= 'none' and kind ~= f.kind.types[i] then
      f.mark = '`' .. key .. '` is a ' .. kind .. ', not a ' .. f.kind.types[i]
      return 'U'
    end
  end
  return nil
end

local answer = {}
for _, f in ipairs(findings) do
  local code = unusable(f) or f.kind.check(f, at)
  if not code and mode ~= 'first' and f.mark ~= f.before then
    code = 'G'
  end
  if not code and mode ~= 'first' and f.left then
    code, f.mark = 'L', f.left
  end
  if not code and mode == 'heal' then
    f.kind.heal(f, at)
    code = 'H'
  end
  answer[#answer + 1] = code or 'F'
  answer[#answer + 1] = f.mark
end
return answer
