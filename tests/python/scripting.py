# SPDX-License-Identifier: Apache-2.0
"""Which tests of this folder need TorchScript, the library's or torch's own.

conftest.py marks them with `scripts`. `./tests/run --thorough` runs all others with a library that
was built without TorchScript: a test that scripts and is not listed here fails there.
"""

from __future__ import annotations

# Parameters of any test: a part of its id between dashes.
PARAMETERS = frozenset({"loaded", "scripted", "traced"})

# Every test of these.
FILES = frozenset(
    {
        "test_crash.py",
        "test_damage.py",
        "test_identity_names.py",
        "test_identity_scripted.py",
        "test_lazy_notes.py",
        "test_lookup_or_run_file.py",
        "test_lookup_or_run_file_changes.py",
        "test_lower.py",
        "test_lower_modules.py",
        "test_off_calls.py",
        "test_pack.py",
        "test_round_trips_scripted.py",
        "test_row_lengths_recorded.py",
        "test_scripted_calls.py",
    }
)

# By file: a test, or `[a parameter]` of any test of the file.
TESTS: dict[str, frozenset[str]] = {
    "test_accelerator_forms.py": frozenset({"[frozen]", "[of_a_file]"}),
    "test_address.py": frozenset(
        {
            "test_a_hit_for_another_input_is_a_conflict",
            "test_eager_and_scripted_share_under_one_scope",
        }
    ),
    "test_admission.py": frozenset(
        {
            "[lowered]",
            "[operator]",
            "test_a_burst_of_one_new_key_runs_once_and_is_stored",
            "test_no_traffic_makes_a_value_wrong",
        }
    ),
    "test_aliasing.py": frozenset(
        {
            "test_two_hits_do_not_share_memory",
            "test_writing_into_a_result_spoils_no_later_hit",
        }
    ),
    "test_batches_at_once.py": frozenset(
        {
            "test_a_filling_process_is_killed_while_others_read",
            "test_four_processes_of_ten_threads",
        }
    ),
    "test_cached_methods_of_modules.py": frozenset(
        {"test_scripted_code_runs_other_methods_uncached"}
    ),
    "test_cached_recorded.py": frozenset(
        {
            "test_a_key_of_its_own_and_a_structured_result",
            "test_a_scripted_parent_calls_the_operator",
            "test_an_exported_parent_shares_entries_with_the_scripted_module",
            "test_names_in_scripted_code_do_not_matter",
            "test_scripted_forms_share_entries",
            "test_texts_are_keys_in_scripted_parents",
            "test_the_scripted_module_itself",
            "test_under_a_scope_eager_and_scripted_share_entries",
        }
    ),
    "test_compile.py": frozenset({"test_a_scripted_module_runs_in_eager_mode"}),
    "test_directory_mode.py": frozenset(
        {
            "[any]",
            "[file]",
            "[frozen]",
            "[lazy]",
            "[loaded, one key]",
            "[lowered]",
            "[scripted, ids]",
            "[scripted, one key]",
            "[traced, one key]",
            "test_a_process_in_a_loop_sees_off_and_on_at_its_next_call",
        }
    ),
    "test_example.py": frozenset(
        {
            "test_cached_and_uncached_training_end_with_the_same_bits",
            "test_the_first_start_finds_nothing_and_fills_the_cache",
            "test_the_picture_and_the_files_for_the_host_are_written",
            "test_the_second_start_finds_everything_without_running_the_encoder",
        }
    ),
    "test_explain.py": frozenset({"test_a_lazy_module_is_explained_and_not_loaded"}),
    "test_export.py": frozenset(
        {
            "test_a_scope_shares_with_every_form",
            "test_it_shares_with_the_scripted_form",
        }
    ),
    "test_export_aoti.py": frozenset({"test_it_shares_with_the_scripted_and_the_exported_form"}),
    "test_freeze.py": frozenset(
        {
            "test_a_count_of_keys_that_is_not_that_of_rows",
            "test_a_frozen_model_is_frozen_once_more",
            "test_a_hit_does_not_run_the_encoder",
            "test_a_lowered_model_hits_what_the_scripted_one_stored",
            "test_a_model_that_was_frozen_and_not_lowered",
            "test_a_tensor_in_several_attributes_is_frozen_once",
            "test_an_empty_batch",
            "test_an_unknown_attribute_to_keep",
            "test_another_process_hits",
            "test_calls_that_cannot_be_lowered_are_all_named_and_nothing_changes",
            "test_constant_input_and_key",
            "test_only_the_missing_rows_are_run",
            "test_the_model_itself_stays_as_it_is",
            "test_the_same_call_twice_is_two_calls",
            "test_the_scope_is_a_constant",
            "test_the_scripted_model_hits_what_the_lowered_one_stored",
            "test_two_modules_of_one_class_do_not_share",
            "test_weights_that_change_after_freezing_stay_out_of_the_frozen_model",
            "test_weights_that_changed_between_lowering_and_freezing",
            "test_what_a_process_that_loads_it_computes_is_stored",
            "test_what_torch_froze_is_stored_under_no_scope_but_its_own",
        }
    ),
    "test_grad.py": frozenset({"test_a_hit_under_inference_mode_does_not_spoil_later_ones"}),
    "test_hit_path.py": frozenset(
        {
            "test_a_scripted_hit_does_not_make_the_module_an_argument",
            "test_what_is_remembered_of_a_scripted_module_goes_with_it",
        }
    ),
    "test_hostile_records.py": frozenset(
        {
            "[a dtype that cannot be copied]",
            "[a dtype that is stored as no other]",
            "[a dtype that torch does not have]",
            "[a quantized dtype]",
            "[a row of another dtype, scripted]",
            "[an own part that reaches into the rest]",
            "[another size]",
            "[call_scripted]",
            "[call_scripted_rows]",
            "[sizes of nothing that overflow]",
            "[sizes that overflow]",
        }
    ),
    "test_identity.py": frozenset(
        {
            "test_a_refresh_holds_for_calls_that_run_beside_the_hashing",
            "test_a_scripted_module_keeps_its_fingerprint_when_saved_and_loaded",
            "test_a_written_element_is_seen_after_refresh",
            "test_the_same_file_hits_in_another_process",
        }
    ),
    "test_identity_layouts.py": frozenset(
        {
            "test_a_nested_tensor_needs_a_scope",
            "test_a_run_that_replaces_such_a_tensor_is_not_kept",
            "test_a_tensor_that_cannot_be_hashed_needs_a_scope",
            "test_such_a_tensor_beside_weights_that_require_grad",
        }
    ),
    "test_identity_sharing.py": frozenset({"test_it_is_the_same_in_every_process"}),
    "test_identity_wrappers.py": frozenset(
        {
            "test_a_scripted_child_from_a_file",
            "test_all_of_a_scripted_child_counts",
            "test_an_equal_scripted_child_is_the_same",
        }
    ),
    "test_inputs.py": frozenset(
        {
            "test_a_scripted_module_is_cached_for_an_empty_list_too",
            "test_eager_and_scripted_calls_share_what_both_can_be_given",
        }
    ),
    "test_keys_compiled.py": frozenset(
        {
            "test_a_trace_has_the_plain_module",
            "test_torchscript_is_refused",
        }
    ),
    "test_lazy.py": frozenset(
        {
            "[path with scope]",
            "[path]",
            "test_a_file_is_not_opened_by_a_new_process_over_a_warm_cache",
            "test_a_file_shares_entries_with_the_module_loaded_ordinarily",
            "test_a_file_that_is_gone",
            "test_a_replaced_file_is_loaded_anew",
            "test_a_touched_file_is_not_loaded_anew",
            "test_loading_does_not_repeat_that_torchscript_is_deprecated",
            "test_mistakes_say_what_is_valid",
        }
    ),
    "test_lazy_as_module.py": frozenset(
        {
            "[path with scope]",
            "[path]",
            "test_another_dtype_is_another_scope_of_a_file",
            "test_copies_and_pickles_load_for_themselves",
            "test_eval_of_what_was_saved_in_eval_is_no_other_scope",
            "test_fingerprint",
            "test_floats_that_were_rounded_on_the_way_are_rounded",
            "test_its_picture_says_whether_it_is_loaded",
            "test_to_and_half_and_eval_are_remembered",
            "test_torch_jit_script_takes_the_module_itself",
        }
    ),
    "test_lifetime.py": frozenset(
        {
            "[fingerprint]",
            "[freeze]",
            "[ids]",
            "[one key]",
            "[refresh]",
            "[rows]",
        }
    ),
    "test_logging.py": frozenset({"test_from_a_native_thread_without_a_call_of_python"}),
    "test_match_input.py": frozenset(
        {
            "[a_file]",
            "[frozen]",
            "[in_a_script]",
            "[scripted_one_key]",
            "test_a_saved_and_loaded_script_agrees",
        }
    ),
    "test_mode_guard.py": frozenset({"test_a_call_inside_obeys_it"}),
    "test_mode_tasks.py": frozenset({"test_a_task_obeys_its_own_guards_and_no_others"}),
    "test_modes.py": frozenset(
        {
            "test_a_bad_value_in_the_environment_is_warned_about_once",
            "test_off_opens_nothing_in_the_directory",
            "test_the_environment_sets_where_it_starts",
        }
    ),
    "test_own_caches.py": frozenset(
        {
            "test_a_lazy_file_is_known_in_each_directory",
            "test_a_module_that_it_made_cannot_be_scripted",
            "test_a_prefetcher_encodes_in_the_cache_in_which_it_is_begun",
            "test_modules_are_identified_and_placed_next_to_a_task_in_another",
            "test_operators_cannot_know_the_task_and_say_so",
            "test_tasks_overlap_where_a_cache_of_one_is_around_that_of_the_other",
            "test_tasks_that_end_up_in_the_same_cache_do_not_overlap",
            "test_tasks_that_have_the_same_cache_do_not_overlap",
            "test_threads_of_fork_inherit_it",
            "test_what_it_made_always_uses_it",
            "test_with_makes_it_the_current_one",
        }
    ),
    "test_processes.py": frozenset(
        {
            "test_a_fork_in_the_middle_of_everything",
            "test_a_forked_child_uses_the_cache_on_its_own",
            "test_two_filling_and_two_reading_processes",
            "test_what_one_flushed_the_other_sees_at_its_next_call",
            "test_what_one_stored_the_other_sees_within_a_second",
        }
    ),
    "test_refresh_verify.py": frozenset(
        {
            "test_a_batch_that_is_partly_there_is_compared_where_it_can_be",
            "test_refresh_replaces_for_other_processes_and_verify_does_not",
        }
    ),
    "test_rows.py": frozenset({"[operator]"}),
    "test_rows_mistakes.py": frozenset({"test_the_message_names_the_class_that_was_scripted"}),
    "test_rows_unclear.py": frozenset({"test_in_torchscript_likewise"}),
    "test_schema.py": frozenset(
        {
            "[_begin_rows_run]",
            "[_begin_run]",
            "[_finish_rows_run]",
            "[_finish_run]",
            "[_held]",
            "[_hit]",
            "[_identity]",
            "[_identity_of_run]",
            "[_is_hit]",
            "[_is_last_run]",
            "[_lowered_call]",
            "[_lowered_rows_call]",
            "[_must_run]",
            "[_rows_of]",
            "[_state]",
            "test_there_are_no_other_operators",
        }
    ),
    "test_script.py": frozenset(
        {
            "test_a_tuple_becomes_the_arguments",
            "test_hooks_of_a_scripted_module_run",
            "test_scope_and_method_inside_a_script",
            "test_the_head_is_trained_and_the_encoder_is_run_once",
            "test_what_a_scripted_encoder_raises_reaches_the_caller",
            "test_x_and_a_tuple_of_x_are_one_call",
        }
    ),
    "test_shim.py": frozenset(
        {
            "[a fingerprint of an unknown method, scripted]",
            "[an empty key, scripted]",
            "[an unknown method, scripted]",
            "test_an_empty_key_is_a_value_error",
        }
    ),
    "test_snapshot.py": frozenset({"[a scripted module]"}),
    "test_stats.py": frozenset(
        {
            "test_contains_takes_a_fingerprint",
            "test_hits_misses_and_tiers",
        }
    ),
    "test_stored_types.py": frozenset(
        {
            "test_a_list_of_rows_is_one_of_tensors_only_if_all_are",
            "test_what_is_stored_as_another_type_is_replaced",
            "test_what_python_took_for_a_named_tuple_is_safe_in_torchscript",
        }
    ),
    "test_shared_arguments.py": frozenset({"test_scripted_modules_take_them_too"}),
    "test_structured.py": frozenset(
        {
            "test_a_method_that_declares_any_keeps_its_types_too",
            "test_another_process_reads_them",
            "test_the_tensor_form_names_the_other",
            "test_types_answer_the_same_on_a_miss_and_on_a_hit",
            "test_what_python_stored_torchscript_reads_and_the_other_way_round",
        }
    ),
    "test_threads.py": frozenset(
        {
            "test_clear_makes_no_directory_and_respects_the_mode",
            "test_configure_and_clear_while_others_look_up",
        }
    ),
    "test_tuple_keys.py": frozenset({"test_scripted_modules_take_them"}),
    "test_values.py": frozenset(
        {
            "[meta-scripted]",
            "[sparse-scripted]",
            "test_a_result_that_is_no_tensor_is_an_error_that_says_so",
        }
    ),
    "test_verify_share.py": frozenset(
        {
            "[lowered]",
            "[operator]",
            "test_batches_of_a_scope_that_is_switched_off_run",
            "test_explain_says_so",
        }
    ),
    "test_writes_without_trace.py": frozenset({"test_of_a_lowered_model"}),
}


def scripts(file: str, test: str, parameters: str) -> bool:
    """Whether the test `test[parameters]` of the file needs TorchScript."""
    parts = {*parameters.split("-"), parameters}
    if file in FILES or parts & PARAMETERS:
        return True
    listed = TESTS.get(file, frozenset())
    return test in listed or any(f"[{part}]" in listed for part in parts)
