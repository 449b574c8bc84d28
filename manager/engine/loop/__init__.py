"""The loop of one experiment: take a message, decide, commit, act.

Entry: `loop`. Reading order: loop, messages, state, starts and transitions (trials and jobs through their life cycles),
tuning, user_commands, placing, reservations, effects, retention and copies (of checkpoints), checkpoint_storage (where
else they are), listeners, stopping (what is waited for), hints (what a trial scheduler cannot do), recovery, context.
"""
