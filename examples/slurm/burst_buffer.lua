-- For Slurm's plugin burst_buffer/lua: directives of job scripts, as users of DataWarp know them.
--
--   #BB_LUA weft [over=DIR] [store=DIR[:SIZE]]
--   #BB_LUA stage_in source=DIR destination=/PATH        (a path in the job's file system)
--   #BB_LUA stage_out source=/PATH destination=DIR
--
-- Slurm calls the functions below on slurmctld's host, as SlurmUser. There is no file system there: its nodes run on
-- the job's hosts, as the job's user, and only while the job does. Before the job no host is known, and its stage-out
-- begins when the hosts are told to kill what is left of the job. So this file checks directives when a job is
-- submitted, and hands them to the job; task-prolog.sh and task-epilog.sh carry them out before and after the job's
-- script, on its first host.
--
-- slurm.conf:         BurstBufferType=burst_buffer/lua
-- this file:          burst_buffer.lua in the directory of slurm.conf, with a burst_buffer.conf, which may be empty

-- Renamed since Lua 5.1.
local unpack = unpack or table.unpack

local KEYS = {
    weft = { over = false, store = false },
    stage_in = { source = true, destination = true },
    stage_out = { source = true, destination = true },
}
-- Of each directive, the key that names a directory of the site.
local OUTSIDE = { weft = "over", stage_in = "source", stage_out = "destination" }
local INSIDE = { stage_in = "destination", stage_out = "source" }
-- Values go through an environment and a shell: nothing that either of them could take for more than a word.
local PATH = { "^/[%w/._+=,@%%-]*$", "an absolute path of letters, digits and /._+=,@%-" }
local STORE = { "^[%w/._:-]+$", "DIR:SIZE or memory:SIZE, of letters, digits and /._-" }

-- Returns the words and keys of a directive, or nil and what is wrong with it.
local function parsed(line)
    local verb, rest = line:match("^(%S+)%s*(.-)%s*$")
    local keys = KEYS[verb]
    if not keys then
        return nil, "no directive of Weft: weft, stage_in, stage_out"
    end
    local values = {}
    for word in rest:gmatch("%S+") do
        local key, value = word:match("^([%w_]+)=(.+)$")
        if not key or keys[key] == nil or values[key] then
            return nil, "unexpected " .. word
        end
        local pattern, meaning = unpack(key == "store" and STORE or PATH)
        if not value:match(pattern) then
            return nil, key .. "= has to be " .. meaning
        end
        values[key] = value
    end
    for key, is_needed in pairs(keys) do
        if is_needed and not values[key] then
            return nil, "needs " .. key .. "="
        end
    end
    return { verb = verb, values = values }
end

-- Returns the directives of a job script, or nil and what is wrong.
local function directives(job_script)
    local file, cause = io.open(job_script)
    if not file then
        return nil, cause
    end
    local found, weft = {}, 0
    for line in file:lines() do
        local text = line:match("^#BB_LUA%s+(.*)$")
        if text then
            local directive, wrong = parsed(text)
            if not directive then
                file:close()
                return nil, "#BB_LUA " .. text .. ": " .. wrong
            end
            weft = weft + (directive.verb == "weft" and 1 or 0)
            table.insert(found, directive)
        end
    end
    file:close()
    if #found > 0 and weft ~= 1 then
        return nil, "one line \"#BB_LUA weft\" is needed"
    end
    return found
end

-- At submission, while slurmctld waits: refuses a job whose directives are wrong.
function slurm_bb_job_process(job_script, uid, gid)
    local found, wrong = directives(job_script)
    if not found then
        return slurm.ERROR, "weft: " .. wrong
    end
    return slurm.SUCCESS
end

-- When the job has its hosts, while slurmctld waits: variables for the job. %j is the job's number.
function slurm_bb_paths(job_id, job_script, path_file, uid, gid)
    local found, wrong = directives(job_script)
    local file = found and io.open(path_file, "w")
    if not file then
        return slurm.ERROR, "weft: " .. (wrong or path_file)
    end
    local stages = { stage_in = {}, stage_out = {} }
    for _, directive in ipairs(found) do
        local values = directive.values
        local outside = OUTSIDE[directive.verb]
        if values[outside] then
            values[outside] = values[outside]:gsub("%%j", job_id)
        end
        if directive.verb == "weft" then
            file:write("WEFT_BB=", job_id, "\n")
            file:write("WEFT_BB_OVER=", values.over or "", "\n")
            file:write("WEFT_BB_STORE=", values.store or "", "\n")
        else
            table.insert(stages[directive.verb], values.source .. " " .. values.destination)
        end
    end
    file:write("WEFT_BB_STAGE_IN=", table.concat(stages.stage_in, " "), "\n")
    file:write("WEFT_BB_STAGE_OUT=", table.concat(stages.stage_out, " "), "\n")
    file:close()
    return slurm.SUCCESS
end

-- Slurm wants these functions. Nothing of Weft is done where they run.
function slurm_bb_pools()
    return slurm.SUCCESS
end
function slurm_bb_setup(job_id, uid, gid, pool, size, job_script)
    return slurm.SUCCESS
end
slurm_bb_data_in = slurm_bb_setup
slurm_bb_real_size = slurm_bb_setup
slurm_bb_pre_run = slurm_bb_setup
slurm_bb_post_run = slurm_bb_setup
slurm_bb_data_out = slurm_bb_setup
slurm_bb_job_teardown = slurm_bb_setup
slurm_bb_get_status = slurm_bb_setup
